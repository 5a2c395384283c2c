# All services of this node: SETTING
qd_find_state_folder "$1" || :
qd_list_services "$qd_folder"
