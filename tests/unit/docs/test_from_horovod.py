"""The page for those who come from Horovod says what is exported, and what is exported is on it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import tfcollective.horovod.keras.callbacks
import tfcollective.horovod.keras.elastic
import tfcollective.horovod.tensorflow.elastic
from tfcollective._cli.horovod_names import TABLES

pytestmark = pytest.mark.tensorflow
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "from-horovod.md").read_text()
MODULES = {
    "tfcollective.horovod.tensorflow": tfcollective.horovod.tensorflow,
    "tfcollective.horovod.keras": tfcollective.horovod.keras,
    "callbacks": tfcollective.horovod.keras.callbacks,
    "tensorflow.elastic": tfcollective.horovod.tensorflow.elastic,
    "keras.elastic": tfcollective.horovod.keras.elastic,
}


def rows() -> list[tuple[str, str, str]]:
    """(section, name, status) of every row of the tables of names."""
    found, section = [], ""
    for line in PAGE.splitlines():
        if line.startswith("#"):
            title = line.strip("# ")
            section = title if title in MODULES else "" if line.startswith("## ") else section
        elif row := re.match(r"\| `(\w+)` \| (same|different|not yet) \|", line):
            found.append((section, row[1], row[2]))
    return found


@pytest.mark.parametrize(("section", "name", "status"), rows())
def test_a_row_is_true(section: str, name: str, status: str) -> None:
    module = MODULES[section]
    if status != "not yet":
        assert name in module.__all__
        assert getattr(module, name) is not None
    else:
        assert not hasattr(module, name)


def test_the_command_knows_what_the_page_says() -> None:
    tables = {
        "tensorflow": "tfcollective.horovod.tensorflow",
        "elastic": "tensorflow.elastic",
        "keras": "tfcollective.horovod.keras",
        "callbacks": "callbacks",
        "keras_elastic": "keras.elastic",
    }
    known = [(tables[table], name, row[0]) for table, names in TABLES.items() for name, row in names.items()]
    assert known == rows()
    for names in TABLES.values():
        for name, (status, note) in names.items():
            assert f"| `{name}` | {status} | {note}{' ' if note else ''}|" in PAGE


def test_no_row_is_missing() -> None:
    here_only = set(re.findall(r"`(\w+)`", PAGE.split("## Names that Horovod does not have")[1]))
    in_tables = {name for _, name, _ in rows()} | here_only
    assert len(rows()) > 70
    for module in MODULES.values():
        assert set(module.__all__) <= in_tables


COMMON = "compression sparse_as_dense"
SIGNATURES = {
    "tfcollective.horovod.tensorflow": {
        "init": "comm process_sets",
        "allreduce": "tensor average device_dense device_sparse compression op prescale_factor postscale_factor name "
        "process_set ignore_name_scope",
        "grouped_allreduce": "tensors average device_dense device_sparse compression op prescale_factor "
        "postscale_factor process_set ignore_name_scope name",
        "allgather": "tensor name ignore_name_scope process_set",
        "grouped_allgather": "tensors name ignore_name_scope process_set",
        "broadcast": "tensor root_rank name ignore_name_scope process_set",
        "broadcast_": "variables root_rank name process_set",
        "alltoall": "tensor splits name ignore_name_scope process_set",
        "reducescatter": "tensor device_dense compression op name process_set ignore_name_scope prescale_factor "
        "postscale_factor",
        "grouped_reducescatter": "tensors device_dense compression op process_set prescale_factor postscale_factor",
        "size_op": "process_set_id name",
        "process_set_included_op": "process_set_id name",
        "broadcast_object": "obj root_rank session name process_set",
        "broadcast_object_fn": "root_rank session name process_set",
        "allgather_object": "obj session name process_set",
        "broadcast_variables": "variables root_rank process_set inplace",
        "BroadcastGlobalVariablesHook": "root_rank device",
        "DistributedOptimizer": f"optimizer name use_locking device_dense device_sparse {COMMON} "
        "backward_passes_per_step op gradient_predivide_factor average_aggregated_gradients num_groups groups "
        "process_set scale_local_gradients",
        "DistributedGradientTape": f"gradtape device_dense device_sparse {COMMON} op gradient_predivide_factor "
        "num_groups groups process_set scale_local_gradients",
        "PartialDistributedGradientTape": f"gradtape device_dense device_sparse {COMMON} op "
        "gradient_predivide_factor num_groups groups process_set local_layers scale_local_gradients",
    },
    "tfcollective.horovod.keras": {
        "allreduce": "value name average prescale_factor postscale_factor op compression",
        "allgather": "value name",
        "broadcast": "value root_rank name",
        "reducescatter": "value name op",
        "DistributedOptimizer": f"optimizer name device_dense device_sparse {COMMON} gradient_predivide_factor op "
        "backward_passes_per_step average_aggregated_gradients num_groups groups process_set scale_local_gradients",
        "PartialDistributedOptimizer": f"optimizer name device_dense device_sparse {COMMON} gradient_predivide_factor "
        "op backward_passes_per_step average_aggregated_gradients groups process_set local_layers "
        "scale_local_gradients",
        "load_model": "filepath custom_optimizers custom_objects compression legacy_opts",
    },
    "callbacks": {
        "BroadcastGlobalVariablesCallback": "root_rank device local_variables",
        "MetricAverageCallback": "device",
        "LearningRateScheduleCallback": "initial_lr multiplier start_epoch end_epoch staircase momentum_correction "
        "steps_per_epoch",
        "LearningRateWarmupCallback": "initial_lr warmup_epochs momentum_correction steps_per_epoch verbose",
        "BestModelCheckpoint": "monitor verbose save_weights_only mode save_freq",
    },
    "tensorflow.elastic": {
        "run": "func",
        "State": "bcast_object get_rank",
        "ObjectState": "bcast_object get_rank values",
        "TensorFlowState": "variables session values",
        "TensorFlowKerasState": "model optimizer backend values",
        "HostsUpdatedInterrupt": "skip_sync",
    },
    "keras.elastic": {
        "KerasState": "model optimizer",
        "CommitStateCallback": "state batches_per_commit",
        "UpdateBatchStateCallback": "state",
        "UpdateEpochStateCallback": "state",
    },
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in SIGNATURES.items() for name in names])
def test_arguments_stand_where_horovod_has_them(module: str, name: str) -> None:
    expected = SIGNATURES[module][name].split()
    assert list(inspect.signature(getattr(MODULES[module], name)).parameters)[: len(expected)] == expected
