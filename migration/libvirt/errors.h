// Turns libvirt's last error of this thread into an Error. Internal to this folder.
#pragma once

#include <string>

#include "proto/base/result.h"

namespace gantry::libvirt {

/// Call right after the libvirt function that failed, in the same thread. `what` starts the
/// sentence: "cannot read the XML of domain X". No libvirt function may make that text, not even
/// the one that tells a domain's name: each forgets the error of the one before.
[[nodiscard]] Error last_error(const std::string& what);

/// libvirt prints errors on stderr unless told otherwise; a library must not.
void silence_libvirt();

}  // namespace gantry::libvirt
