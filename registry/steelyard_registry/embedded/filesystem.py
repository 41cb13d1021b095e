"""Whether a folder is on a disk of this machine.

SQLite's write-ahead log lives in memory that all processes of one machine share, and its locks are the kernel's. On a
network file system neither holds: the file works for days and is then torn. SQLite says so itself (sqlite.org/wal.html,
"WAL does not work over a network filesystem") and does not check it; so this does.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import RegistryError

MOUNTS = Path("/proc/self/mountinfo")
_REMOTE = frozenset(("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs", "gfs2", "glusterfs", "gpfs", "lustre"))
_REMOTE |= {"ncpfs", "nfs", "nfs4", "ocfs2", "pvfs2", "smb2", "smb3", "smbfs"}
# Layers over local disks that are made of FUSE; any other FUSE file system is a network until shown otherwise.
_LOCAL_FUSE = frozenset(("fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.mergerfs", "fuse.bindfs"))


def require_local(path: Path) -> None:
    """Raises RegistryError when the folder of *path* is on a network file system. Where the kernel does not tell (no
    ``/proc``), nothing is concluded."""
    kind = filesystem_of(path.parent)
    if kind in _REMOTE or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE):
        raise RegistryError(
            f"{path} is on a network file system ({kind}), where SQLite's locks do not hold; name a file on a local "
            "disk, or use zookeeper:// for several machines"
        )


def filesystem_of(folder: Path) -> str:
    """The kind of file system that *folder* is on, as mount(8) calls it; empty when it cannot be told."""
    try:
        device = os.stat(folder).st_dev
        mounts = MOUNTS.read_text("utf-8", "surrogateescape")
    except OSError:
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    # 36 35 98:0 /root /mount/point options [optional fields] - kind source options      (proc_pid_mountinfo(5))
    for line in reversed(mounts.splitlines()):
        found = re.match(r"\S+ \S+ (\S+) \S+ \S+ .*? - (\S+) ", line + " ")
        if found and found[1] == wanted:
            return found[2]
    return ""
