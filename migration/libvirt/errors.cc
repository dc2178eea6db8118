#include "migration/libvirt/errors.h"

#include <libvirt/virterror.h>

#include <mutex>

namespace gantry::libvirt {

Error last_error(const std::string& what) {
    const virError* error = virGetLastError();
    const std::string message =
        error != nullptr && error->message != nullptr ? error->message : "libvirt gives no reason";
    const std::string text = what + ": " + message;
    switch (error == nullptr ? 0 : error->code) {
        case VIR_ERR_NO_DOMAIN: return {Code::kNotFound, "libvirt.no_domain", text};
        case VIR_ERR_NO_DOMAIN_METADATA: return {Code::kNotFound, "libvirt.no_metadata", text};
        case VIR_ERR_OPERATION_INVALID: return {Code::kFailedPrecondition, "libvirt.state", text};
        case VIR_ERR_OPERATION_TIMEOUT: return {Code::kDeadlineExceeded, "libvirt.busy", text};
        case VIR_ERR_OPERATION_DENIED:
        case VIR_ERR_AUTH_FAILED:
        case VIR_ERR_AUTH_CANCELLED:
        case VIR_ERR_ACCESS_DENIED: return {Code::kPermissionDenied, "libvirt.denied", text};
        case VIR_ERR_INVALID_ARG:
        case VIR_ERR_XML_ERROR: return {Code::kInvalidArgument, "libvirt.argument", text};
        default: return {Code::kUnavailable, "libvirt.unavailable", text};
    }
}

void silence_libvirt() {
    static std::once_flag once;
    std::call_once(once, [] { virSetErrorFunc(nullptr, [](void*, virErrorPtr) {}); });
}

}  // namespace gantry::libvirt
