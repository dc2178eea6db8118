"""The areas that faults are planted in: their files, and the tests that cover them.

A test is a GoogleTest program, whose tests are run one by one, the quick ones first."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Area:
    name: str
    files: tuple     # Patterns of pathlib's glob, from the root of the tree.
    tests: tuple     # Targets of the build, GoogleTest programs each.
    without: tuple = ()  # Files that the patterns name and no test of these can reach.


AREAS = [
    Area("ring", ("proto/wire/*.h", "proto/wire/mirror/*.cc"),
         ("wire_test", "mirror_test", "shim_hypervisor_test", "shim_session_test"),
         ("proto/wire/attach.h", "proto/wire/control_ops.h")),
    Area("session", ("guest-shim/session/**/*.cc", "guest-shim/session/**/*.h",
                     "guest-shim/driver/code/image.cc", "guest-shim/driver/code/jit_options.cc",
                     "guest-shim/driver/core/ranges.cc"),
         ("shim_parts_test", "shim_session_test", "shim_copies_test", "shim_hypervisor_test")),
    Area("worker", ("host-daemon/execution/base/*.cc", "host-daemon/execution/calls/*.cc",
                    "host-daemon/execution/code/*.cc", "host-daemon/execution/device/*.cc",
                    "host-daemon/execution/dispatch/*.cc", "host-daemon/execution/loading/*.cc",
                    "host-daemon/execution/memory/*.cc", "host-daemon/execution/objects/*.cc",
                    "host-daemon/execution/process/*.cc", "host-daemon/execution/ring/*.cc",
                    "host-daemon/worker/*.cc"),
         ("worker_parts_test", "worker_sandbox_test", "worker_test", "worker_variables_test"),
         ("host-daemon/worker/main.cc",)),
    Area("state", ("host-daemon/state/**/*.cc", "proto/snapshot/*.cc"),
         ("gantry_snapshot_test", "worker_file_blocks_test", "worker_gpu_fingerprints_test",
          "worker_test", "worker_variables_test")),
    Area("gantryd", ("host-daemon/supervisor/**/*.cc",), ("supervisor_test",),
         ("host-daemon/supervisor/api/gantryd.cc",)),
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
