"""The areas that faults are planted in: their files, and the tests that cover them.

A test is a GoogleTest program, whose tests are run one by one, the quick ones first. What only a
whole guest comes by is shown to a few of tests/programs as well, on the soft GPU, when no unit test
has seen it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Area:
    name: str
    files: tuple     # Patterns of pathlib's glob, from the root of the tree.
    tests: tuple     # Targets of the build, GoogleTest programs each.
    without: tuple = ()  # Files that the patterns name and no test of these can reach.
    programs: tuple = ()  # "way/program" of tests/programs/run_program.


# What these need of the build.
PROGRAM_TARGETS = ("cuda_shim", "gantry", "gantry-worker", "gantryd", "programs")
PROGRAMS = ("move/every_setting", "restore/graph_moves", "replace/virtual_memory",
            "copy/texture_object", "move/module_globals", "move/memory_pools",
            "restore/graph_memory", "restore/host_callbacks", "move/graph_parameters",
            "restore/capture_nodes", "restore/conditional_nodes", "move/contexts",
            "move/dynamic_shared")


AREAS = [
    Area("ring", ("proto/wire/*.h", "proto/wire/mirror/*.cc", "host-daemon/execution/ring/*.cc"),
         ("wire_test", "mirror_test", "shim_hypervisor_test", "shim_session_test",
          "worker_parts_test", "worker_test"),
         ("proto/wire/attach.h", "proto/wire/control_ops.h")),
    Area("session", ("guest-shim/session/**/*.cc", "guest-shim/session/**/*.h",
                     "guest-shim/driver/code/image.cc", "guest-shim/driver/code/jit_options.cc",
                     "guest-shim/driver/core/ranges.cc"),
         ("shim_parts_test", "shim_session_test", "shim_copies_test", "shim_hypervisor_test")),
    Area("worker", ("host-daemon/execution/base/*.cc", "host-daemon/execution/calls/*.cc",
                    "host-daemon/execution/code/*.cc", "host-daemon/execution/device/*.cc",
                    "host-daemon/execution/dispatch/*.cc", "host-daemon/execution/loading/*.cc",
                    "host-daemon/execution/memory/*.cc", "host-daemon/execution/objects/*.cc",
                    "host-daemon/execution/process/*.cc", "host-daemon/worker/*.cc"),
         ("worker_parts_test", "worker_sandbox_test", "worker_test", "worker_variables_test"),
         ("host-daemon/worker/main.cc",), PROGRAMS),
    Area("state", ("host-daemon/state/**/*.cc", "proto/snapshot/*.cc"),
         ("gantry_snapshot_test", "worker_file_blocks_test", "worker_gpu_fingerprints_test",
          "worker_test", "worker_variables_test"), (), PROGRAMS),
    Area("gantryd", ("host-daemon/supervisor/moves/*.cc", "host-daemon/supervisor/parts/*.cc",
                     "host-daemon/supervisor/registry/*.cc",
                     "host-daemon/supervisor/sessions/*.cc",
                     "host-daemon/supervisor/snapshots/*.cc",
                     "host-daemon/supervisor/workers/*.cc"),
         ("supervisor_test",), (), PROGRAMS),
    Area("engine", ("migration/engine/*.cc",), ("gantry_engine_test", "gantry_sim_test")),
    Area("transport", ("migration/transport/*.cc", "migration/transport/*.h"),
         ("transport_test",)),
    Area("softgpu", ("host-daemon/softgpu/engine/**/*.cc", "host-daemon/softgpu/engine/**/*.h",
                     "host-daemon/softgpu/ptx/*.cc"),
         ("softgpu_engine_test",)),
]


def area(name):
    for one in AREAS:
        if one.name == name:
            return one
    raise SystemExit(f"no area '{name}': {', '.join(one.name for one in AREAS)}")


def files(one, root):
    """The area's files, sorted, from the root of the tree."""
    found = {path.relative_to(root).as_posix() for pattern in one.files
             for path in root.glob(pattern)}
    return sorted(found - set(one.without))
