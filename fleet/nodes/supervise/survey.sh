# What has to be known before a start: what runs already, who has the port, is the program there.
# SETTING PORT PROGRAM
qd_find_state_folder "$1" || :
qd_list_services "$qd_folder"
if [ "$2" -gt 0 ]; then qd_listeners "$2"; fi
case $3 in
*/*)
    if [ ! -e "$3" ]; then
        printf 'program missing\n'
    elif [ ! -f "$3" ] || [ ! -x "$3" ]; then
        printf 'program not-executable\n'
    fi
    ;;
*) command -v "$3" >/dev/null 2>&1 || printf 'program missing\n' ;;
esac
printf 'done\n'
