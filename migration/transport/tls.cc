#include "migration/transport/tls.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

namespace gantry::transport {
namespace {

template <auto Function>
struct Free {
    template <typename T>
    void operator()(T* pointer) const {
        Function(pointer);
    }
};
using BioPtr = std::unique_ptr<BIO, Free<BIO_free_all>>;
using X509Ptr = std::unique_ptr<X509, Free<X509_free>>;
using StorePtr = std::unique_ptr<X509_STORE, Free<X509_STORE_free>>;
using StoreContextPtr = std::unique_ptr<X509_STORE_CTX, Free<X509_STORE_CTX_free>>;
struct FreeStack {
    void operator()(STACK_OF(X509) * stack) const { sk_X509_free(stack); }  // not what is in it
};
using StackPtr = std::unique_ptr<STACK_OF(X509), FreeStack>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using ContextPtr = std::unique_ptr<SSL_CTX, Free<SSL_CTX_free>>;
using SslPtr = std::unique_ptr<SSL, Free<SSL_free>>;

constexpr int kConnectTimeoutMs = 3000;

Error invalid(const std::string& text) {
    return Error{Code::kUnauthenticated, "certificate.invalid", text};
}

std::string openssl_text() {
    char text[256] = "no reason given";
    if (const unsigned long code = ERR_peek_last_error(); code != 0) {
        ERR_error_string_n(code, text, sizeof text);
    }
    ERR_clear_error();
    return text;
}

Result<std::string> read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file || text.str().empty()) {
        return invalid("cannot read " + path + ": " + std::strerror(errno) +
                       "; put the PEM file there or correct [peer] in gantryd.toml");
    }
    return text.str();
}

X509Ptr parse_certificate(const std::string& pem) {
    const BioPtr bio{BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))};
    return X509Ptr{PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)};
}

/// All that `pem` holds, in its order.
std::vector<X509Ptr> parse_certificates(const std::string& pem) {
    const BioPtr bio{BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))};
    std::vector<X509Ptr> out;
    while (X509* one = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
        out.emplace_back(one);
    }
    ERR_clear_error();  // "no start line": the end.
    return out;
}

Result<void> check_in_force(const X509* certificate, const std::string& path) {
    if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
        return invalid("the certificate in " + path + " has expired; issue a new one");
    }
    if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
        return invalid("the certificate in " + path + " is not valid yet; check this host's clock");
    }
    return {};
}

struct Address {
    std::string host;
    std::string port;
};

Result<Address> split_address(const std::string& address) {
    const std::size_t colon = address.rfind(':');
    if (colon == std::string::npos || colon + 1 == address.size() || colon == 0) {
        return Error{Code::kInvalidArgument, "network.address",
                     "'" + address + "' is not ADDRESS:PORT"};
    }
    std::string host = address.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
        host = host.substr(1, host.size() - 2);
    }
    return Address{host, address.substr(colon + 1)};
}

Error unreachable(const std::string& address, const std::string& why) {
    return Error{Code::kUnavailable, "network.unreachable",
                 "cannot reach the gantryd at " + address + ": " + why +
                     "; is it running there, and is the way open?"};
}

/// A connected socket, blocking with timeouts.
Result<int> connect_socket(const std::string& address) {
    GANTRY_ASSIGN(const Address at, split_address(address));
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    if (const int error = ::getaddrinfo(at.host.c_str(), at.port.c_str(), &hints, &list);
        error != 0) {
        return unreachable(address, ::gai_strerror(error));
    }
    const std::unique_ptr<addrinfo, Free<::freeaddrinfo>> owner{list};
    std::string why = "no address";
    for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
        const int fd = ::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const timeval timeout{kConnectTimeoutMs / 1000, 0};
        ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
        ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
        if (::connect(fd, entry->ai_addr, entry->ai_addrlen) == 0) {
            return fd;
        }
        why = std::strerror(errno);
        ::close(fd);
    }
    return unreachable(address, why);
}

Result<ContextPtr> make_context(const TlsMaterial& own) {
    ContextPtr context{SSL_CTX_new(TLS_client_method())};
    const X509Ptr authority = parse_certificate(own.authority_pem);
    const X509Ptr certificate = parse_certificate(own.certificate_pem);
    const BioPtr key_bio{BIO_new_mem_buf(own.key_pem.data(), static_cast<int>(own.key_pem.size()))};
    const KeyPtr key{PEM_read_bio_PrivateKey(key_bio.get(), nullptr, nullptr, nullptr)};
    if (!context || !authority || !certificate || !key ||
        X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), authority.get()) != 1 ||
        SSL_CTX_use_certificate(context.get(), certificate.get()) != 1 ||
        SSL_CTX_use_PrivateKey(context.get(), key.get()) != 1) {
        return invalid("this host's own certificate cannot be used: " + openssl_text());
    }
    SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    return context;
}

void expect_name(SSL* ssl, const std::string& host) {
    X509_VERIFY_PARAM* parameters = SSL_get0_param(ssl);
    if (X509_VERIFY_PARAM_set1_ip_asc(parameters, host.c_str()) != 1) {
        X509_VERIFY_PARAM_set1_host(parameters, host.c_str(), host.size());
        SSL_set_tlsext_host_name(ssl, host.c_str());
    }
}

}  // namespace

Result<TlsMaterial> load_tls(const TlsFiles& files) {
    TlsMaterial material;
    GANTRY_ASSIGN(material.authority_pem, read_file(files.authority));
    GANTRY_ASSIGN(material.certificate_pem, read_file(files.certificate));
    GANTRY_ASSIGN(material.key_pem, read_file(files.key));
    const X509Ptr authority = parse_certificate(material.authority_pem);
    if (!authority) {
        return invalid(files.authority + " holds no PEM certificate: " + openssl_text());
    }
    const X509Ptr certificate = parse_certificate(material.certificate_pem);
    if (!certificate) {
        return invalid(files.certificate + " holds no PEM certificate: " + openssl_text());
    }
    const BioPtr bio{
        BIO_new_mem_buf(material.key_pem.data(), static_cast<int>(material.key_pem.size()))};
    const KeyPtr key{PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr)};
    if (!key) {
        return invalid(files.key + " holds no PEM private key: " + openssl_text());
    }
    if (X509_check_private_key(certificate.get(), key.get()) != 1) {
        ERR_clear_error();
        return invalid("the key in " + files.key + " does not belong to the certificate in " +
                       files.certificate);
    }
    GANTRY_TRY(check_in_force(authority.get(), files.authority));
    GANTRY_TRY(check_in_force(certificate.get(), files.certificate));
    return material;
}

Result<void> check_chain(const TlsMaterial& material) {
    const std::vector<X509Ptr> trusted = parse_certificates(material.authority_pem);
    const std::vector<X509Ptr> own = parse_certificates(material.certificate_pem);
    const StorePtr store{X509_STORE_new()};
    const StackPtr between{sk_X509_new_null()};
    const StoreContextPtr context{X509_STORE_CTX_new()};
    if (own.empty() || !store || !between || !context) {
        return invalid("the certificate cannot be followed to its authority: " + openssl_text());
    }
    for (const X509Ptr& one : trusted) {
        X509_STORE_add_cert(store.get(), one.get());
    }
    for (const X509Ptr& one : own) {
        sk_X509_push(between.get(), one.get());
    }
    X509_STORE_CTX_init(context.get(), store.get(), own.front().get(), between.get());
    X509_VERIFY_PARAM_set_purpose(X509_STORE_CTX_get0_param(context.get()), X509_PURPOSE_ANY);
    if (X509_verify_cert(context.get()) != 1) {
        const int error = X509_STORE_CTX_get_error(context.get());
        ERR_clear_error();
        return invalid(std::string("the certificate of this host is not accepted by its own "
                                   "authority: ") +
                       X509_verify_cert_error_string(error));
    }
    return {};
}

std::optional<std::time_t> certificate_expiry(const std::string& pem) {
    const X509Ptr certificate = parse_certificate(pem);
    std::tm end{};
    if (!certificate || ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &end) != 1) {
        ERR_clear_error();
        return std::nullopt;
    }
    return ::timegm(&end);
}

bool certificate_names(const std::string& pem, const std::string& host) {
    const X509Ptr certificate = parse_certificate(pem);
    return certificate &&
           (X509_check_ip_asc(certificate.get(), host.c_str(), 0) == 1 ||
            X509_check_host(certificate.get(), host.data(), host.size(), 0, nullptr) == 1);
}

std::string host_of(const std::string& address) {
    const auto split = split_address(address);
    return split ? split->host : address;
}

std::string peer_name(const CertificateNames& names) {
    constexpr std::size_t kBytesMax = 256;
    std::vector<std::string> parts = names.alternative;
    parts.push_back(names.common);
    std::vector<std::string> told;
    std::string out;
    for (const std::string& part : parts) {
        if (!part.empty() && std::ranges::count(told, part) == 0) {
            told.push_back(part);
            out += (out.empty() ? "" : "/") + part;
        }
    }
    std::ranges::replace_if(
        out, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
    return out.empty() ? "?" : out.substr(0, kBytesMax);
}

bool is_allowed(const CertificateNames& names, const std::vector<std::string>& allow) {
    return allow.empty() || std::ranges::any_of(allow, [&](const std::string& one) {
               return !one.empty() &&
                      (one == names.common || std::ranges::count(names.alternative, one) != 0);
           });
}

void require_tls13() {
    // OpenSSL's suites of TLS 1.3 are a list of their own. This one is left out of a handshake
    // unless a program has set pre-shared keys, which gRPC never does.
    ::setenv("GRPC_SSL_CIPHER_SUITES", "ECDHE-PSK-CHACHA20-POLY1305", 1);
}

Error diagnose_tls(const TlsMaterial& own, const std::string& address) {
    auto socket = connect_socket(address);
    if (!socket) {
        return socket.error();
    }
    const int fd = *socket;
    struct Closer {
        int fd;
        ~Closer() { ::close(fd); }
    } const closer{fd};
    auto context = make_context(own);
    if (!context) {
        return context.error();
    }
    const SslPtr ssl{SSL_new(context->get())};
    static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
    SSL_set_alpn_protos(ssl.get(), kHttp2, sizeof kHttp2);
    expect_name(ssl.get(), split_address(address).value().host);
    SSL_set_fd(ssl.get(), fd);
    ERR_clear_error();
    if (SSL_connect(ssl.get()) != 1) {
        if (const long verdict = SSL_get_verify_result(ssl.get()); verdict != X509_V_OK) {
            ERR_clear_error();
            return invalid("the certificate of the gantryd at " + address +
                           " is not accepted here: " + X509_verify_cert_error_string(verdict) +
                           "; issue it by this cluster's authority, for that address");
        }
        return invalid("the gantryd at " + address + " broke the TLS handshake off: " +
                       openssl_text() + "; compare the certificates of both hosts");
    }
    // TLS 1.3 tells a client that its certificate was refused only after its own handshake.
    char byte = 0;
    if (SSL_read(ssl.get(), &byte, 1) != 1) {
        return invalid("the gantryd at " + address + " does not accept this host's certificate: " +
                       openssl_text() + "; issue it by that host's authority");
    }
    return unreachable(address, "it accepts the connection, and does not answer");
}

}  // namespace gantry::transport
