"""``zookeeper://``: Dubbo's interface-level layout in ZooKeeper, through kazoo."""

from .registry import ZooKeeperRegistry

__all__ = ["ZooKeeperRegistry"]
