// libvirt's numbers for lifecycle events, and QEMU's names, as EventKind. Internal to this folder.
#pragma once

#include <optional>
#include <string>

#include "migration/libvirt/events.h"

namespace gantry::libvirt {

/// virDomainEventType and its detail. nullopt: of no interest (defined, pm-suspended, ...).
[[nodiscard]] std::optional<EventKind> lifecycle_kind(int event, int detail);

/// "SUSPENDED/1" for the log, in libvirt's own numbers.
[[nodiscard]] std::string lifecycle_text(int event, int detail);

/// Fills kind and qemu_status from a QEMU monitor event; false: of no interest.
[[nodiscard]] bool map_monitor_event(const char* name, const char* details, DomainEvent* event);

}  // namespace gantry::libvirt
