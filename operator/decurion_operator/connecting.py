"""From a WorkerPool to its link: to the address of an External pool, to a process of ours for a Local one.

A link is made anew whenever what it was made of has changed: the address, the token, the ledger, a Secret's version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from decurion_operator.cache import Cache, Resource
from decurion_operator.conditions import Reason
from decurion_operator.errors import SecretNotUsable
from decurion_operator.gateway import Gateway
from decurion_operator.ingress import Ingress
from decurion_operator.local_pool import LocalPool
from decurion_operator.metrics import Meter
from decurion_operator.plan.pool import Reach
from decurion_operator.pools import PoolLink
from decurion_operator.queue import Key
from decurion_operator.secret_use import STORE_KEYS, not_usable, secret_refs
from decurion_operator.settings import OperatorSettings
from decurion_worker.local_pool import LocalPoolConfig

_OFF: Final = (
    "This operator serves no Local pools: start it with --local-pools where that is meant, or use a pool of mode "
    "External."
)


@dataclass(slots=True)
class Connection:
    """The link to one pool, with its process where it is Local. `refused` says why there is none, with its reason."""

    link: PoolLink | None = None
    local: LocalPool | None = None
    made_of: tuple[Any, ...] = ()
    refused: Reach | None = None

    @property
    def reach(self) -> Reach:
        """How the pool answers, as it is shown."""
        if self.refused is not None:
            return self.refused
        if self.local is not None and not self.local.ready:
            problem = self.local.problem
            return Reach(False, problem, Reason.POOL_PROCESS_ENDED) if problem else Reach(None)
        view = self.link.view if self.link is not None else None
        return Reach(view.available, view.problem) if view is not None else Reach(None)

    async def aclose(self) -> None:
        """The link first: an open long poll would hold up the process."""
        link, local = self.link, self.local
        self.link = self.local = None
        self.made_of = ()
        if link is not None:
            await link.aclose()
        if local is not None:
            await local.aclose()


class Connector:
    """Makes connections. `on_view(key)` is called when something was learned of a pool, `on_run(uid)` of a run."""

    def __init__(
        self,
        cache: Cache,
        gateway: Gateway,
        settings: OperatorSettings,
        meter: Meter,
        *,
        on_view: Callable[[Key], None],
        on_run: Callable[[str], bool],
    ) -> None:
        self._cache = cache
        self._gateway = gateway
        self._settings = settings
        self._meter = meter
        self._on_view = on_view
        self._on_run = on_run

    async def connect(self, pool: Resource, known: Connection) -> str:
        """Bring the connection to what the pool's spec says; returns what is wrong with its Secret, or nothing."""
        local = pool.spec["mode"] == "Local"
        if local and not self._settings.local_pools:
            await known.aclose()
            known.refused = Reach(False, _OFF, Reason.LOCAL_POOLS_OFF)
            return ""
        made_of = self._made_of(pool)
        if known.made_of == made_of:
            return ""
        try:
            secret = await self._secret(pool, local=local)
        except SecretNotUsable as error:
            return str(error)
        await known.aclose()
        known.refused = None
        if local:
            known.local = self._local(pool, secret, known)
            ingress = known.local.ingress()
        else:
            token = next(iter(secret.values()), None)
            ingress = Ingress(
                str(pool.spec["url"]), token=token, seconds=self._settings.pool_seconds, observer=self._meter
            )
        known.link = PoolLink(pool.key, ingress, self._settings, on_view=self._on_view, on_run=self._on_run)
        known.made_of = made_of
        if known.local is not None:
            known.local.start()
        known.link.start()
        return ""

    def _made_of(self, pool: Resource) -> tuple[Any, ...]:
        refs = sorted(secret_refs(pool.spec))
        secrets = (self._cache.get(Key("Secret", pool.key.namespace, name)) for name in sorted({n for n, _ in refs}))
        versions = tuple(found.version for found in secrets if found is not None)
        parts = tuple(repr(pool.spec.get(name)) for name in ("mode", "url", "auth"))
        if pool.spec["mode"] == "Local":
            parts += tuple(repr(pool.spec.get(name)) for name in ("ledger", "runners"))
        return (pool.uid, *parts, *versions)

    async def _secret(self, pool: Resource, *, local: bool) -> Mapping[str, str]:
        """The values that the pool's Secret gives, by key; only those that are meant. Raises `SecretNotUsable`."""
        refs = sorted(secret_refs(pool.spec))
        if not refs:
            return {}
        name = refs[0][0]
        values = await self._gateway.read_secret(pool.key.namespace, name)
        for _, key in refs:
            if not values.get(key, "").strip():
                raise SecretNotUsable(not_usable(name, key))
        keys = [*(key for _, key in refs), *(("AWS_SESSION_TOKEN",) if local else ())]
        return {key: values[key].strip() for key in keys if key in values}

    def _local(self, pool: Resource, secret: Mapping[str, str], known: Connection) -> LocalPool:
        ledger, runners = pool.spec["ledger"], pool.spec.get("runners") or {}
        fewest = runners.get("min", 1)
        access_key, secret_key = STORE_KEYS
        config = LocalPoolConfig(
            socket="",
            token="",
            ledger=str(ledger["uri"]),
            endpoint_url=str(ledger.get("endpointURL") or ""),
            region=str(ledger.get("region") or ""),
            min_runners=fewest,
            max_runners=max(1, fewest, runners.get("max", 1)),
            branches=runners.get("branchesPerRunner", 1024),
            access_key=secret.get(access_key, ""),
            secret_key=secret.get(secret_key, ""),
            session_token=secret.get("AWS_SESSION_TOKEN", ""),
            addressing=str(ledger.get("addressing") or ""),
            checksum=str(ledger.get("checksum") or ""),
            ca=str(ledger.get("caBundle") or ""),
        )

        def changed() -> None:
            if known.link is not None:
                known.link.look()
            self._on_view(pool.key)

        return LocalPool(pool.key, config, self._settings, self._meter, changed=changed)
