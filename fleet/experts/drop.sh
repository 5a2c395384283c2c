# Takes files out of the page cache and tells what stayed: FILE...
# "file|NUMBER|BYTES THAT STAYED|BYTES|PIDS THAT HAVE IT MAPPED"; "none" where nothing here can do it.
if command -v python3 >/dev/null 2>&1; then
    exec python3 -c '
import ctypes, glob, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
STEP = 1 << 30

def stayed(fd, size):
    found = 0
    for at in range(0, size, STEP):
        n = min(STEP, size - at)
        start = libc.mmap(None, n, 0, 1, fd, at)
        if start in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "mmap")
        pages = ctypes.create_string_buffer(-(-n // mmap.PAGESIZE))
        failed = libc.mincore(start, n, pages)
        libc.munmap(start, n)
        if failed:
            raise OSError(ctypes.get_errno(), "mincore")
        found += pages.raw.translate(bytes(i & 1 for i in range(256))).count(1) * mmap.PAGESIZE
    return found

for number, path in enumerate(sys.argv[1:]):
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    if stayed(fd, size):
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    left, pids = stayed(fd, size), []
    if left > size // 50:
        real = os.path.realpath(path)
        for maps in glob.glob("/proc/[0-9]*/maps"):
            try:
                with open(maps, errors="replace") as lines:
                    if any(line.rstrip("\n").endswith(" " + real) for line in lines):
                        pids.append(maps.split("/")[2])
            except OSError:
                pass
    os.close(fd)
    print("file|%d|%d|%d|%s" % (number, left, size, " ".join(pids[:8])))
' "$@"
fi
command -v fincore >/dev/null 2>&1 || { printf 'none\n'; exit 0; }
qd_number=0
for qd_file; do
    dd if="$qd_file" iflag=nocache count=0 2>/dev/null || { printf 'none\n'; exit 0; }
    qd_size=$(wc -c <"$qd_file")
    printf 'file|%s|%s|%s|\n' "$qd_number" "$(fincore -b -n -o RES "$qd_file" | tr -d ' ')" "$qd_size"
    qd_number=$((qd_number + 1))
done
