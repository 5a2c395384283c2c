# How fast a disk gives pieces of a file at random places: FILE BYTES_OF_A_PIECE. "rate BYTES SECONDS", or "none WHY".
command -v python3 >/dev/null 2>&1 || { printf 'none python3\n'; exit 0; }
exec python3 -c '
import mmap, os, random, sys, threading, time
path, each = sys.argv[1], min(max(int(sys.argv[2]), 4096), 16 << 20)
each -= each % 4096
READERS, SECONDS, MOST = 8, 1.5, 512 << 20
size = os.stat(path).st_size
if size < 4 * each:
    print("none small")
    sys.exit()
try:        # past the page cache: neither from it nor into it
    fd, direct = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0)), hasattr(os, "O_DIRECT")
    os.preadv(fd, [mmap.mmap(-1, 4096)], 0)
except OSError:
    fd, direct = os.open(path, os.O_RDONLY), False
if not direct and hasattr(os, "posix_fadvise"):
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
done, lock, until = [0], threading.Lock(), time.monotonic() + SECONDS

def read(seed):
    dice, buffer = random.Random(seed), mmap.mmap(-1, each)
    while time.monotonic() < until and done[0] < MOST:
        at = dice.randrange((size - each) // 4096 + 1) * 4096
        if not direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, at, each, os.POSIX_FADV_DONTNEED)
        got = os.preadv(fd, [buffer], at)
        with lock:
            done[0] += got

begun = time.monotonic()
readers = [threading.Thread(target=read, args=(os.getpid() + n,)) for n in range(READERS)]
for reader in readers:
    reader.start()
for reader in readers:
    reader.join()
print("rate %d %.6f" % (done[0], time.monotonic() - begun))
' "$@"
