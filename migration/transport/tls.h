// Certificates between hosts: reading them, and saying clearly what is wrong with them.
//
// Each host has a certificate and key of its own, signed by the cluster's authority, and its
// address (or name, whichever peers use) as subject alternative name. Both sides of a connection
// must show one: a peer without a certificate of our authority reaches no code of ours.
// Every error about certificates has the reason `certificate.invalid` and names file or peer.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "proto/base/result.h"

namespace gantry::transport {

struct TlsFiles {
    std::string authority;
    std::string certificate;
    std::string key;
};

struct TlsMaterial {
    std::string authority_pem;
    std::string certificate_pem;
    std::string key_pem;
};

/// Reads the three files and checks that they parse, belong together and are in force now.
Result<TlsMaterial> load_tls(const TlsFiles& files);

/// That this host's certificate leads, by what is beside it in its file, to one of the authority's:
/// other hosts of that authority accept no other. Not part of load_tls: hosts whose authorities are
/// exchanged one after the other may differ for a while.
Result<void> check_chain(const TlsMaterial& material);

/// When the first certificate in `pem` is in force no more; nothing where there is none.
std::optional<std::time_t> certificate_expiry(const std::string& pem);

/// Whether a peer that dials `host`, a name or an address, accepts the first certificate in `pem`.
bool certificate_names(const std::string& pem, const std::string& host);
/// Of ADDRESS:PORT, without the brackets of an IPv6 address.
std::string host_of(const std::string& address);

/// A certificate's names, as gRPC tells them.
struct CertificateNames {
    std::vector<std::string> alternative;  ///< Subject alternative names.
    std::string common;                    ///< The subject's common name.
};

/// One line that tells certificates of one authority apart: its names, each once, joined by '/';
/// without control characters, and of at most 256 bytes. "?" when it has none.
std::string peer_name(const CertificateNames& names);
/// True when `allow` is empty or has one of them, letter by letter.
bool is_allowed(const CertificateNames& names, const std::vector<std::string>& allow);

/// From here on this process makes TLS 1.3 connections only: gRPC has no setting for that, so it is
/// given no cipher that an older version could use with certificates. Before the first channel or
/// server, and before threads are started: it sets gRPC's GRPC_SSL_CIPHER_SUITES.
void require_tls13();

/// Called when a connection to ADDRESS:PORT failed: makes the handshake once with OpenSSL to learn
/// why. kUnavailable (`network.unreachable`) when nobody listens, kUnauthenticated
/// (`certificate.invalid`) when either side does not accept the other's certificate.
Error diagnose_tls(const TlsMaterial& own, const std::string& address);

}  // namespace gantry::transport
