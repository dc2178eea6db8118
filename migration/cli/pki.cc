#include "migration/cli/pki.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

namespace gantry::cli {
namespace {

template <auto Function>
struct FreeBy {
    template <typename T>
    void operator()(T* pointer) const {
        Function(pointer);
    }
};
using PemText = std::unique_ptr<BIO, FreeBy<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, FreeBy<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, FreeBy<EVP_PKEY_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, FreeBy<X509_EXTENSION_free>>;
using Serial = std::unique_ptr<BIGNUM, FreeBy<BN_free>>;

constexpr std::size_t kNameMax = 64;  ///< Of a common name, by X.520.
constexpr long kDaySeconds = 24L * 60 * 60;

Error failed(const std::string& what) {
    char text[256] = "no reason given";
    if (const unsigned long code = ERR_peek_last_error(); code != 0) {
        ERR_error_string_n(code, text, sizeof(text));
    }
    ERR_clear_error();
    return {Code::kInternal, "certificate.made", what + ": OpenSSL: " + text};
}

Result<void> make_folder(const std::string& path) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) {
        return Error{Code::kPermissionDenied, "certificate.written",
                     "cannot make " + path + ": " + error.message()};
    }
    return {};
}

/// Before anything is made: half of what was wanted is of no use.
Result<void> check_absent(const std::string& folder, const std::vector<const char*>& names) {
    for (const char* name : names) {
        const std::string path = folder + "/" + name;
        if (::access(path.c_str(), F_OK) == 0) {
            return Error{Code::kAlreadyExists, "certificate.exists",
                         path +
                             " is there already, and nothing is overwritten; move it away or "
                             "name another folder with --out"};
        }
    }
    return {};
}

Result<void> write_new(const std::string& path, const std::string& text, mode_t mode) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    const bool is_written =
        fd >= 0 && ::fchmod(fd, mode) == 0 &&
        ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
        ::fsync(fd) == 0;
    const int failure = errno;
    ::close(fd);
    if (!is_written) {
        return Error{Code::kUnavailable, "certificate.written",
                     "cannot write " + path + ": " + std::strerror(failure)};
    }
    return {};
}

template <typename Writer>
Result<std::string> pem_of(Writer write) {
    const PemText out(BIO_new(BIO_s_mem()));
    if (!out || write(out.get()) != 1) {
        return failed("a PEM file cannot be made");
    }
    char* text = nullptr;
    const long bytes = BIO_get_mem_data(out.get(), &text);
    return std::string(text, static_cast<std::size_t>(bytes));
}

Result<std::string> pem_of(const Certificate& certificate) {
    return pem_of([&](BIO* out) { return PEM_write_bio_X509(out, certificate.get()); });
}

Result<std::string> pem_of(const Key& key) {
    return pem_of([&](BIO* out) {
        return PEM_write_bio_PKCS8PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
}

bool add_extension(X509* certificate, X509* issuer, int kind, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
    const Extension made(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
    return made && X509_add_ext(certificate, made.get(), -1) == 1;
}

bool set_serial(X509* certificate) {
    std::array<unsigned char, 16> random{};
    if (RAND_bytes(random.data(), static_cast<int>(random.size())) != 1) {
        return false;
    }
    random[0] &= 0x7F;  // positive
    const Serial number(BN_bin2bn(random.data(), static_cast<int>(random.size()), nullptr));
    return number &&
           BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

/// All but extensions and signature.
Result<Certificate> begin_certificate(const std::string& name, int days, const Key& key) {
    constexpr long kClocksDiffer = 5L * 60;
    Certificate made(X509_new());
    if (name.empty() || name.size() > kNameMax) {
        return Error{Code::kInvalidArgument, "certificate.subject",
                     "'" + name + "' is no name for a certificate: 1 to 64 characters"};
    }
    X509_NAME* const subject = made ? X509_get_subject_name(made.get()) : nullptr;
    const auto* const text = reinterpret_cast<const unsigned char*>(name.c_str());
    if (subject == nullptr || X509_set_version(made.get(), X509_VERSION_3) != 1 ||
        !set_serial(made.get()) ||
        X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, text, -1, -1, 0) != 1 ||
        X509_gmtime_adj(X509_getm_notBefore(made.get()), -kClocksDiffer) == nullptr ||
        X509_gmtime_adj(X509_getm_notAfter(made.get()), days * kDaySeconds) == nullptr ||
        X509_set_pubkey(made.get(), key.get()) != 1) {
        return failed("the certificate of " + name + " cannot be made");
    }
    return made;
}

bool is_ip_address(const std::string& text) {
    std::array<unsigned char, sizeof(in6_addr)> parsed{};
    return ::inet_pton(AF_INET, text.c_str(), parsed.data()) == 1 ||
           ::inet_pton(AF_INET6, text.c_str(), parsed.data()) == 1;
}

/// What a comma or a line end would turn into another entry is refused.
bool is_host_name(const std::string& text) {
    return !text.empty() && text.size() <= 253 && text.front() != '-' && text.front() != '.' &&
           std::all_of(text.begin(), text.end(), [](char c) {
               return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '-' || c == '.' || c == '*' || c == '_';
           });
}

Result<std::string> alternative_names(const NewHost& wanted) {
    std::vector<std::string> names{wanted.name};
    names.insert(names.end(), wanted.others.begin(), wanted.others.end());
    std::string out;
    for (const std::string& name : names) {
        const bool is_address = is_ip_address(name);
        if (!is_address && !is_host_name(name)) {
            return Error{Code::kInvalidArgument, "certificate.subject",
                         "'" + name + "' is neither a host's name nor an IP address"};
        }
        out += (out.empty() ? "" : ", ") + std::string(is_address ? "IP:" : "DNS:") + name;
    }
    return out;
}

Result<std::string> read_text(const std::string& path) {
    std::ifstream file(path);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!file || text.empty()) {
        return Error{Code::kNotFound, "certificate.authority",
                     "cannot read " + path +
                         "; `gantry pki init` makes an authority, and --ca names "
                         "its folder"};
    }
    return text;
}

struct Authority {
    std::string pem;
    Certificate certificate;
    Key key;
};

Result<Authority> read_authority(const std::string& folder) {
    Authority out;
    GANTRY_ASSIGN(out.pem, read_text(folder + "/ca.pem"));
    GANTRY_ASSIGN(const std::string key, read_text(folder + "/ca.key"));
    const PemText certificate_text(
        BIO_new_mem_buf(out.pem.data(), static_cast<int>(out.pem.size())));
    const PemText key_text(BIO_new_mem_buf(key.data(), static_cast<int>(key.size())));
    out.certificate.reset(PEM_read_bio_X509(certificate_text.get(), nullptr, nullptr, nullptr));
    out.key.reset(PEM_read_bio_PrivateKey(key_text.get(), nullptr, nullptr, nullptr));
    if (!out.certificate || !out.key ||
        X509_check_private_key(out.certificate.get(), out.key.get()) != 1) {
        ERR_clear_error();
        return Error{Code::kFailedPrecondition, "certificate.authority",
                     folder + "/ca.pem and ca.key are not a certificate and its key"};
    }
    return out;
}

}  // namespace

Result<void> make_authority(const NewAuthority& wanted) {
    GANTRY_TRY(make_folder(wanted.folder));
    GANTRY_TRY(check_absent(wanted.folder, {"ca.pem", "ca.key"}));
    const Key key(EVP_EC_gen("P-256"));
    if (!key) {
        return failed("no key can be made");
    }
    GANTRY_ASSIGN(const Certificate made, begin_certificate(wanted.name, wanted.days, key));
    X509* const self = made.get();
    if (X509_set_issuer_name(self, X509_get_subject_name(self)) != 1 ||
        !add_extension(self, self, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
        !add_extension(self, self, NID_key_usage, "critical,keyCertSign,cRLSign") ||
        !add_extension(self, self, NID_subject_key_identifier, "hash") ||
        X509_sign(self, key.get(), EVP_sha256()) == 0) {
        return failed("the authority cannot be made");
    }
    GANTRY_ASSIGN(const std::string key_text, pem_of(key));
    GANTRY_ASSIGN(const std::string text, pem_of(made));
    GANTRY_TRY(write_new(wanted.folder + "/ca.key", key_text, 0600));
    return write_new(wanted.folder + "/ca.pem", text, 0644);
}

Result<std::string> issue_certificate(const NewHost& wanted) {
    GANTRY_ASSIGN(const std::string names, alternative_names(wanted));
    GANTRY_ASSIGN(const Authority authority, read_authority(wanted.authority));
    GANTRY_TRY(make_folder(wanted.folder));
    const bool needs_authority = wanted.folder != wanted.authority;
    std::vector<const char*> files{"host.pem", "host.key"};
    if (needs_authority) {
        files.push_back("ca.pem");
    }
    GANTRY_TRY(check_absent(wanted.folder, files));
    const Key key(EVP_EC_gen("P-256"));
    if (!key) {
        return failed("no key can be made");
    }
    GANTRY_ASSIGN(const Certificate made, begin_certificate(wanted.name, wanted.days, key));
    X509* const host = made.get();
    X509* const issuer = authority.certificate.get();
    if (X509_set_issuer_name(host, X509_get_subject_name(issuer)) != 1 ||
        !add_extension(host, issuer, NID_basic_constraints, "critical,CA:FALSE") ||
        !add_extension(host, issuer, NID_key_usage, "critical,digitalSignature") ||
        !add_extension(host, issuer, NID_ext_key_usage, "serverAuth,clientAuth") ||
        !add_extension(host, issuer, NID_subject_key_identifier, "hash") ||
        !add_extension(host, issuer, NID_authority_key_identifier, "keyid") ||
        !add_extension(host, issuer, NID_subject_alt_name, names) ||
        X509_sign(host, authority.key.get(), EVP_sha256()) == 0) {
        return failed("the certificate of " + wanted.name + " cannot be made");
    }
    GANTRY_ASSIGN(const std::string key_text, pem_of(key));
    GANTRY_ASSIGN(const std::string text, pem_of(made));
    GANTRY_TRY(write_new(wanted.folder + "/host.key", key_text, 0600));
    GANTRY_TRY(write_new(wanted.folder + "/host.pem", text, 0644));
    if (needs_authority) {
        GANTRY_TRY(write_new(wanted.folder + "/ca.pem", authority.pem, 0644));
    }
    return names;
}

}  // namespace gantry::cli
