"""Is a folder on a network file system?

A home on NFS is normal on a cluster. Mapping a store from there costs the network for every page fault, and file locks
there range from slow to hanging, so the cache goes to a local disk unless the user asked for that very folder.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Optional

# f_type of statfs(2), as in linux/magic.h and the file systems' own sources.
_NETWORK_MAGIC = {
    0x6969: 'nfs',
    0x517B: 'smb',
    0xFF534D42: 'cifs',
    0xFE534D42: 'smb',
    0x564C: 'ncp',
    0x73757245: 'coda',
    0x5346414F: 'afs',
    0x6B414653: 'afs',
    0x01021997: '9p',
    0x00C36400: 'ceph',
    0x0BD00BD0: 'lustre',
    0x47504653: 'gpfs',
    0x7461636F: 'ocfs2',
    0x01161970: 'gfs2',
    0x19830326: 'beegfs',
    0xAAD7AAEA: 'panfs',
    0x20030528: 'orangefs',
    0xBEEFDEAD: 'snfs',
    0x013111A8: 'ibrix',
}
_FUSE_MAGIC = 0x65735546
# File systems in user space that sit on a local disk; any other one (sshfs, s3fs, gcsfuse, glusterfs...) may be remote.
_LOCAL_FUSE = frozenset(
    (
        'virtiofs',
        'fuseblk',
        'fuse.fuse-overlayfs',
        'fuse.mergerfs',
        'fuse.ntfs-3g',
        'fuse.exfat',
        'fuse.bindfs',
        'fuse.encfs',
        'fuse.gocryptfs',
        'fuse.cryfs',
        'fuse.squashfuse',
        'fuse.unionfs',
    )
)
_NETWORK_NAMES = frozenset(('nfs', 'nfs4', 'cifs', 'smb3', 'wekafs', 'lustre', 'gpfs', 'beegfs', 'afs', 'pvfs2'))


def network_filesystem(folder: os.PathLike) -> Optional[str]:
    """The name of the network file system that ``folder`` (or, if missing, its nearest parent) is on.

    Returns:
        A name such as 'nfs', or None for a local file system and where it cannot be told (not on Linux).
    """
    if not sys.platform.startswith('linux'):
        return None
    path = nearest(folder)
    magic = _statfs_type(path)
    if magic in _NETWORK_MAGIC:
        return _NETWORK_MAGIC[magic]
    name = _mounted_type(path)
    if magic == _FUSE_MAGIC:
        return None if name in _LOCAL_FUSE else name or 'fuse'
    return name if name in _NETWORK_NAMES else None


def filesystem_name(folder: os.PathLike) -> Optional[str]:
    """The name of the file system that ``folder`` (or, if missing, its nearest parent) is on, None if unknown."""
    return network_filesystem(folder) or _mounted_type(nearest(folder))


def nearest(folder: os.PathLike) -> Path:
    """The real path of ``folder`` or, if it is missing, of its nearest parent that is there."""
    path = Path(os.path.realpath(folder))
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    return path


def _statfs_type(path: Path) -> Optional[int]:
    """f_type of statfs(2), or None when the call is not to be had."""
    try:
        statfs = ctypes.CDLL(None, use_errno=True).statfs
    except (OSError, AttributeError):
        return None
    buffer = ctypes.create_string_buffer(512)  # struct statfs takes 120 bytes or less; f_type is its first word
    if statfs(ctypes.c_char_p(os.fsencode(path)), buffer) != 0:
        return None
    return ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF


def _mounted_type(path: Path) -> Optional[str]:
    """The type of the innermost mount that holds ``path``, from /proc/self/mountinfo."""
    best, found = -1, None
    try:
        with open('/proc/self/mountinfo', 'rb') as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    target = os.fsencode(path)
    for line in lines:
        fields, _, rest = line.partition(b' - ')
        # Spaces and the like are written as octal escapes.
        point = fields.split()[4].decode('unicode_escape').encode('latin-1').rstrip(b'/')
        inside = target == point or target.startswith(point + b'/')
        if inside and len(point) >= best:  # the last of several mounts on one point is the visible one
            best, found = len(point), rest.split()[0].decode('ascii', 'replace')
    return found
