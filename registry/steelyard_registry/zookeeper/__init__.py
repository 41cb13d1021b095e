"""``zookeeper://``: Dubbo's layouts in ZooKeeper, through kazoo: a list an interface, and a list an application."""

from .applications import ApplicationRegistry
from .registry import ZooKeeperRegistry

__all__ = ["ApplicationRegistry", "ZooKeeperRegistry"]
