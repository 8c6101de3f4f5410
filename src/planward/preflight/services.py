"""Whether loggers and endpoints have their packages and keys, and answer."""

from __future__ import annotations

import netrc
import os
import socket
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from planward.core import paths
from planward.loggers import TENSORBOARD_FOLDER, check_installed, list_missing
from planward.params import AccessConfig, LoggingConfig, Params, ParamsError
from planward.preflight.resources import list_folder_faults

CONNECT_TIMEOUT_S = 5
PORTS = {"http": 80, "https": 443}
REPORT_TO = f"{paths.params_file('planning')}: logging.report_to"
SERVER_FIX = "start the server, or unset the variable"


def list_logger_faults(config: LoggingConfig) -> list[str]:
    """Return what keeps the loggers of `logging.report_to` from a training run."""
    faults, missing = list[str](), list_missing(config)
    try:
        check_installed(config)
    except ParamsError as error:
        faults.append(f"{paths.params_file('planning')}: {error}")
    for name in config.report_to:
        if name == "wandb" and name not in missing:
            faults += _list_wandb_faults()
        elif name == "tensorboard":
            faults += list_folder_faults(TENSORBOARD_FOLDER)
        elif name == "mlflow":
            faults += _list_mlflow_faults()
        elif name == "trackio":
            faults += _list_trackio_faults()
    return faults


def _list_mlflow_faults() -> list[str]:
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    scheme = urlsplit(uri).scheme
    if scheme in ("http", "https"):
        return list_url_faults(uri, f"{REPORT_TO}: mlflow: MLFLOW_TRACKING_URI", SERVER_FIX)
    if scheme == "sqlite":  # three slashes before a relative path, four before an absolute one
        return list_folder_faults(Path(unquote(uri.partition(":///")[2].partition("?")[0])).parent)
    if scheme in ("", "file"):  # without the variable mlflow.db and mlruns/, in this folder
        return list_folder_faults(Path(unquote(urlsplit(uri).path)))
    return []


def _list_trackio_faults() -> list[str]:
    url = os.environ.get("TRACKIO_SERVER_URL")
    if url and not os.environ.get("TRACKIO_SPACE_ID"):  # which takes precedence
        return list_url_faults(url, f"{REPORT_TO}: trackio: TRACKIO_SERVER_URL", SERVER_FIX)
    from huggingface_hub.constants import HF_HOME

    return list_folder_faults(Path(os.environ.get("TRACKIO_DIR") or Path(HF_HOME, "trackio")))


def _list_wandb_faults() -> list[str]:
    from wandb.sdk.wandb_setup import singleton

    settings = singleton().settings  # from the environment and wandb's own files
    if settings.mode not in ("online", "offline"):
        return []
    faults = list_folder_faults(Path(settings.wandb_dir))  # wandb would write below /tmp, which a node may clear
    if settings.mode == "offline":
        return faults
    if not (settings.api_key or settings.identity_token_file or _has_netrc_key(settings.base_url)):
        fix = "wandb login, set WANDB_API_KEY, or set WANDB_MODE=offline"
        return [*faults, f"{REPORT_TO}: wandb has no API key for {settings.base_url}; fix: {fix}"]
    fix = "set WANDB_MODE=offline, and wandb sync later"
    return faults + list_url_faults(settings.base_url, f"{REPORT_TO}: wandb", fix)


def _has_netrc_key(url: str) -> bool:
    """Whether the user's netrc file has a password for a host, or for api.wandb.ai, which wandb takes as well."""
    file = os.environ.get("NETRC") or next(
        (str(path) for name in (".netrc", "_netrc") if (path := Path.home() / name).exists()), None
    )
    if file is None:
        return False
    try:
        entries = netrc.netrc(Path(file).expanduser())
    except (OSError, netrc.NetrcParseError):
        return False
    hosts = (urlsplit(url).netloc, "api.wandb.ai")
    return any(entry is not None and entry[2] for entry in map(entries.authenticators, hosts))


def list_endpoint_faults(params: Params, name: str) -> list[str]:
    """Return what keeps an endpoint from being asked; nothing where all its answers may be stored already."""
    if name not in params.endpoints.run or _may_be_answered(params, name):
        return []  # the stage says what is wrong with the name
    faults, access = list[str](), params.endpoints.access.get(name, AccessConfig())
    prefix = f"{paths.params_file(params.task)}: endpoints"
    if find_spec("openai") is None:
        fix = "pip install -e '.[endpoints]'"
        faults.append(f"{prefix}.models.{name}: needs openai, which is not installed; fix: {fix}")
    if access.key_env is not None and not os.environ.get(access.key_env, "").strip():
        text = f"the environment variable {access.key_env} is not set"
        faults.append(f"{prefix}.access.{name}.key_env: {text}; fix: export {access.key_env}=...")
    fix = "start the server, or correct the URL"
    return faults + list_url_faults(params.endpoints.models[name].url, f"{prefix}.models.{name}.url", fix)


def _may_be_answered(params: Params, name: str) -> bool:
    """Whether an endpoint has a stored answer for each test problem and number of examples, or as many others."""
    results = paths.results(params.task)
    answers, problems = results.root / "endpoints" / f"{name}.jsonl", results.score / "test.jsonl"
    if not (answers.exists() and problems.exists()):
        return False
    return _count_lines(answers) >= _count_lines(problems) * len(params.evaluate.shots)


def _count_lines(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for _ in lines)


def list_url_faults(url: str, source: str, fix: str) -> list[str]:
    """Return why nothing answers at a URL, or at the proxy that leads to it; no request is made."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(parts.netloc):
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}", "http")
    try:
        port = parts.port or PORTS.get(parts.scheme, 1080)
        socket.create_connection((parts.hostname or "", port), CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:  # ValueError: no port's number
        at = "" if parts.netloc == urlsplit(url).netloc else f" at the proxy {parts.hostname}"
        return [f"{source}: {url} does not answer{at} ({error}); fix: {fix}"]
    return []
