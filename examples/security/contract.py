"""What can be called."""

from typing import Protocol

from steelyard import method, service


@service("bank.Ledger")
class Ledger(Protocol):
    @method(timeout_s=2.0, idempotent=True)
    async def balance(self, account: str) -> int: ...

    @method(timeout_s=2.0)
    async def transfer(self, account: str, cents: int) -> int: ...
