"""TF_CONFIG: what TensorFlow's own cluster variable says, written by any tool (TFJob, TonY, Ray, Vertex AI, people)."""

from __future__ import annotations

from tfcollective.identity.cluster import claim, has_cluster, load
from tfcollective.identity.model import Claim, Facts, Source
from tfcollective.settings import TF_CONFIG

__all__ = ["SOURCE"]


def _text(facts: Facts) -> str:
    """The variable, or what it was before an earlier ``init()`` of this process took it away."""
    return facts.environ.get(TF_CONFIG, "").strip() or facts.settings.tf_config or ""


def _is_present(facts: Facts) -> bool:
    text = _text(facts)
    return bool(text) and has_cluster(load(text, TF_CONFIG))


def _parse(facts: Facts) -> Claim:
    return claim(load(_text(facts), TF_CONFIG), TF_CONFIG, facts)


SOURCE = Source("tf_config", f"{TF_CONFIG} with a cluster that is not empty", _is_present, _parse)
