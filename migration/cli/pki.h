// `gantry pki`: an authority of one's own, and the hosts' certificates signed by it, as gantryd
// wants them (peer.authority, peer.certificate, peer.key). P-256 keys; needs no gantryd.
//
// Nothing is ever overwritten. Keys have mode 0600 from the moment that they are there,
// certificates 0644.
#pragma once

#include <string>
#include <vector>

#include "proto/base/result.h"

namespace gantry::cli {

struct NewAuthority {
    std::string folder;  ///< Gets ca.pem and ca.key; is made where it is not there.
    std::string name = "Gantry authority";
    int days = 3650;
};
Result<void> make_authority(const NewAuthority& wanted);

struct NewHost {
    std::string authority;  ///< Folder of ca.pem and ca.key.
    std::string folder;     ///< Gets ca.pem, host.pem and host.key; made where it is not there.
    std::string name;       ///< By which other hosts reach it; a name or an IP address.
    std::vector<std::string> others;  ///< Further names and addresses of it.
    int days = 365;
};
/// What is in the certificate besides the name, for the operator: "DNS:a, IP:1.2.3.4".
Result<std::string> issue_certificate(const NewHost& wanted);

}  // namespace gantry::cli
