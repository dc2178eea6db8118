// `gantry pki`: what OpenSSL makes of the certificates, who may read the files, and that nothing is
// overwritten.
#include "migration/cli/pki.h"

#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

namespace gantry::cli {
namespace {

class Pki : public testing::Test {
protected:
    ~Pki() override { std::filesystem::remove_all(folder_); }

    using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
    Certificate read(const std::string& name) {
        std::FILE* const file = std::fopen((folder_ + name).c_str(), "r");
        EXPECT_NE(file, nullptr) << name;
        Certificate out(PEM_read_X509(file, nullptr, nullptr, nullptr), X509_free);
        std::fclose(file);
        return out;
    }
    unsigned mode(const std::string& name) {
        struct stat what {};
        EXPECT_EQ(::stat((folder_ + name).c_str(), &what), 0) << name;
        return what.st_mode & 0777;
    }
    /// As a peer of either role would: by the authority alone.
    bool is_valid(X509* host, X509* authority, int purpose) {
        X509_STORE* const store = X509_STORE_new();
        X509_STORE_add_cert(store, authority);
        X509_STORE_CTX* const context = X509_STORE_CTX_new();
        X509_STORE_CTX_init(context, store, host, nullptr);
        X509_STORE_CTX_set_purpose(context, purpose);
        const bool is_ok = X509_verify_cert(context) == 1;
        X509_STORE_CTX_free(context);
        X509_STORE_free(store);
        return is_ok;
    }

    std::string folder_ = [] {
        char pattern[] = "/tmp/pki_test.XXXXXX";
        return std::string(::mkdtemp(pattern));
    }();
};

TEST_F(Pki, AHostsCertificateIsGoodForItsNamesInBothRoles) {
    const auto made = make_authority({folder_ + "/ca", "an authority", 100});
    ASSERT_TRUE(made.ok()) << made.error().text;
    const auto issued = issue_certificate({folder_ + "/ca",
                                           folder_ + "/a",
                                           "hosta.example.org",
                                           {"192.0.2.11", "2001:db8::11", "hosta"},
                                           30});
    ASSERT_TRUE(issued.ok()) << issued.error().text;
    EXPECT_EQ(*issued, "DNS:hosta.example.org, IP:192.0.2.11, IP:2001:db8::11, DNS:hosta");
    const auto authority = read("/ca/ca.pem");
    const auto host = read("/a/host.pem");
    ASSERT_TRUE(authority && host);
    for (const int role : {X509_PURPOSE_SSL_CLIENT, X509_PURPOSE_SSL_SERVER}) {
        EXPECT_TRUE(is_valid(host.get(), authority.get(), role)) << role;
    }
    EXPECT_EQ(X509_check_host(host.get(), "hosta.example.org", 0, 0, nullptr), 1);
    EXPECT_EQ(X509_check_host(host.get(), "hosta", 0, 0, nullptr), 1);
    EXPECT_NE(X509_check_host(host.get(), "hostb.example.org", 0, 0, nullptr), 1);
    EXPECT_EQ(X509_check_ip_asc(host.get(), "192.0.2.11", 0), 1);
    EXPECT_EQ(X509_check_ip_asc(host.get(), "2001:db8::11", 0), 1);
    EXPECT_NE(X509_check_ip_asc(host.get(), "192.0.2.12", 0), 1);
    EXPECT_NE(X509_check_ca(host.get()), 1) << "a host could make others' certificates";
    EXPECT_EQ(X509_check_ca(authority.get()), 1);
    int days = 0;
    int seconds = 0;
    ASSERT_EQ(ASN1_TIME_diff(&days, &seconds, nullptr, X509_get0_notAfter(host.get())), 1);
    const int left_s = days * 86400 + seconds;
    EXPECT_TRUE(left_s <= 30 * 86400 && left_s > 30 * 86400 - 120) << left_s;
    EXPECT_EQ(mode("/ca/ca.key"), 0600U);
    EXPECT_EQ(mode("/a/host.key"), 0600U);
    for (const char* name : {"/ca/ca.pem", "/a/host.pem", "/a/ca.pem"}) {
        EXPECT_EQ(mode(name), 0644U) << name;
    }
    std::FILE* const file = std::fopen((folder_ + "/a/host.key").c_str(), "r");
    EVP_PKEY* const key = PEM_read_PrivateKey(file, nullptr, nullptr, nullptr);
    std::fclose(file);
    EXPECT_EQ(X509_check_private_key(host.get(), key), 1);
    EVP_PKEY_free(key);
}

TEST_F(Pki, AnotherAuthoritysHostIsAStranger) {
    ASSERT_TRUE(make_authority({folder_ + "/ours"}).ok());
    ASSERT_TRUE(make_authority({folder_ + "/theirs"}).ok());
    ASSERT_TRUE(issue_certificate({folder_ + "/theirs", folder_ + "/x", "hostx", {}, 30}).ok());
    EXPECT_FALSE(
        is_valid(read("/x/host.pem").get(), read("/ours/ca.pem").get(), X509_PURPOSE_SSL_CLIENT));
}

TEST_F(Pki, NothingIsOverwrittenAndNothingIsHalfDone) {
    ASSERT_TRUE(make_authority({folder_}).ok());
    const auto again = make_authority({folder_});
    EXPECT_EQ(again.error().reason, "certificate.exists");
    std::ofstream(folder_ + "/host.key") << "precious";
    const auto issued = issue_certificate({folder_, folder_, "hosta", {}, 30});
    ASSERT_FALSE(issued.ok());
    EXPECT_EQ(issued.error().reason, "certificate.exists");
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/host.pem"));
    EXPECT_EQ(std::filesystem::file_size(folder_ + "/host.key"), 8U);
}

TEST_F(Pki, WhatIsNoNameAndWhatIsNoAuthorityAreToldApart) {
    ASSERT_TRUE(make_authority({folder_ + "/ca"}).ok());
    for (const std::string name : {"", "a,DNS:b", "a\nb", "-a", "a b"}) {
        const auto issued = issue_certificate({folder_ + "/ca", folder_ + "/a", name, {}, 30});
        ASSERT_FALSE(issued.ok()) << name;
        EXPECT_EQ(issued.error().reason, "certificate.subject") << name;
    }
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/a"));
    const auto none = issue_certificate({folder_ + "/none", folder_ + "/a", "hosta", {}, 30});
    EXPECT_EQ(none.error().reason, "certificate.authority");
    std::filesystem::copy_file(folder_ + "/ca/ca.pem", folder_ + "/ca.pem");
    std::ofstream(folder_ + "/ca.key") << "no key";
    const auto damaged = issue_certificate({folder_, folder_ + "/a", "hosta", {}, 30});
    EXPECT_EQ(damaged.error().reason, "certificate.authority");
}

}  // namespace
}  // namespace gantry::cli
