"""Runs a command with a limit on its memory, including the page cache of its files: in a cgroup below the current one."""
import os
import resource
import subprocess
import time


class Unlimited(Exception):
    """Memory cannot be limited on this system; the text gives the reason."""


def _own_groups():
    with open("/proc/self/cgroup", encoding="utf-8") as f:
        return [line.rstrip("\n").split(":", 2) for line in f]


def _mounts(kind):
    with open("/proc/self/mounts", encoding="utf-8") as f:
        return [(m[1], m[3].split(",")) for m in map(str.split, f) if m[2] == kind]


class Group:
    def __init__(self, size):
        """A cgroup limited to `size` bytes. Raises Unlimited."""
        self.path = None
        tried = []
        for path, file in self._places():
            try:
                os.mkdir(path)
            except OSError as e:
                tried.append(f"{path}: {e.strerror}")
                continue
            self.path = path
            try:
                with open(os.path.join(path, file), "w", encoding="utf-8") as f:
                    f.write(str(size))
                return
            except OSError as e:
                tried.append(f"{path}/{file}: {e.strerror}")
                self.close()
        raise Unlimited("; ".join(tried) or "no memory groups are mounted")

    def _places(self):
        groups = _own_groups()
        name = f"hearth-test-{os.getpid()}"
        for mount, options in _mounts("cgroup"):
            for _, controllers, own in groups:
                if "memory" in options and "memory" in controllers.split(","):
                    yield os.path.join(mount, own.lstrip("/"), name), "memory.limit_in_bytes"
        for mount, _ in _mounts("cgroup2"):
            for number, _, own in groups:
                if number == "0":
                    yield os.path.join(mount, own.lstrip("/"), name), "memory.max"

    def run(self, args, **more):
        """Like subprocess.run; the result also has seconds, faults (from disk) and read (bytes)."""
        procs = os.path.join(self.path, "cgroup.procs")

        def enter():
            with open(procs, "w", encoding="utf-8") as f:
                f.write(str(os.getpid()))

        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        p = subprocess.run(args, preexec_fn=enter, **more)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        p.seconds = time.monotonic() - begun
        p.faults, p.read = after.ru_majflt - before.ru_majflt, (after.ru_inblock - before.ru_inblock) * 512
        return p

    def close(self):
        for _ in range(100):
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.05)  # its last process is still exiting


def forget(directory):
    """Drops a directory's files from the page cache, so that the next process that reads them is charged for them."""
    for name in os.listdir(directory):
        fd = os.open(os.path.join(directory, name), os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
