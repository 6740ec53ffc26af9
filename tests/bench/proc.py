"""Data of a process from /proc: CPU time, memory, bytes read from the disk. Also fills the page cache with
files, keeps them there, drops them from it, and prepares free pages for it."""

import mmap
import os
from contextlib import ExitStack, contextmanager
from pathlib import Path

from units import MIB

TICKS = os.sysconf("SC_CLK_TCK")
# A flag of mmap(2) that Python does not define.
MAP_LOCKED = 0x2000


def cpu_seconds(pid):
    """User and system time of all threads so far, including those that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _status_bytes(pid, name):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(f"no {name} in /proc/{pid}/status")


def resident_bytes(pid):
    """Memory of the process in RAM now."""
    return _status_bytes(pid, "VmRSS")


def resident_bytes_max(pid):
    """Maximum of the process's memory in RAM so far."""
    return _status_bytes(pid, "VmHWM")


def read_bytes(pid):
    """Bytes that the process caused to be read from the disk, including read-ahead and page faults, without
    hits of the page cache."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise KeyError(f"no read_bytes in /proc/{pid}/io")


def children(pid):
    """Processes that the main thread of `pid` started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def files(folder):
    """Every file under a folder; files that are removed meanwhile are left out."""
    for path, _, names in os.walk(folder):
        yield from (Path(path) / name for name in names)


def disk_bytes(folder):
    """Bytes that the files under a folder take on the disk."""
    total = 0
    for path in files(folder):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            pass
    return total


def drop_from_page_cache(folder):
    """Drops all files under a folder from the page cache, so that the next read comes from the disk."""
    for path in files(folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def read_into_page_cache(folder):
    """Reads all files, which the kernel may have dropped because they were not used for a while."""
    for file in files(folder):
        try:
            with open(file, "rb", buffering=0) as handle:
                while handle.read(4 * MIB):
                    pass
        except FileNotFoundError:
            pass  # Removed meanwhile.


@contextmanager
def kept_in_page_cache(folder):
    """Keeps all files under a folder in the page cache, also those that are removed meanwhile. Without the
    permission to lock that much memory, reads them once."""
    with ExitStack() as locked:
        for file in files(folder):
            try:
                with open(file, "rb") as handle:
                    flags = mmap.MAP_SHARED | MAP_LOCKED
                    locked.enter_context(mmap.mmap(handle.fileno(), 0, flags=flags, prot=mmap.PROT_READ))
            except (FileNotFoundError, ValueError):
                pass  # Removed meanwhile, or empty.
            except OSError:
                read_into_page_cache(folder)
                break
        yield


def have_page_cache_ready(folder, size):
    """Writes `size` bytes to a file and removes it before any of it is on the disk. A virtual machine whose
    host reclaims free memory pays for each page that it uses for the first time (up to 2 CPU s/GiB were
    measured); data written directly afterwards gets pages that were in use."""
    path, piece = Path(folder) / "ready", bytes(MIB)
    with open(path, "wb", buffering=0) as file:
        for _ in range(0, size, MIB):
            file.write(piece)
    path.unlink()
