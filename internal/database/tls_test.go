package database_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
)

// authority signs a server certificate for these names; mysqld's own certificates have none.
func authority(t *testing.T, names ...string) (caFile string, server tls.Certificate) {
	t.Helper()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		return k
	}
	template := func(serial int64, ca bool) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour),
			NotAfter: time.Now().Add(time.Hour), IsCA: ca, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		}
	}
	caKey, serverKey := key(), key()
	ca := template(1, true)
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	require.NoError(t, err)
	caFile = filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	leaf := template(2, false)
	leaf.DNSNames = names
	der, err = x509.CreateCertificate(rand.Reader, leaf, ca, serverKey.Public(), caKey)
	require.NoError(t, err)
	return caFile, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: serverKey}
}

// handshake tries a mode against a server with a certificate.
func handshake(t *testing.T, server tls.Certificate, mode database.TLSMode, caFile, name string) error {
	t.Helper()
	cfg, err := database.ClientTLS(mode, caFile)
	require.NoError(t, err)
	cfg.ServerName = name
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = tls.Server(there, &tls.Config{Certificates: []tls.Certificate{server}}).Handshake() // the client's verdict counts
	}()
	err = tls.Client(here, cfg).Handshake()
	here.Close()
	<-served
	return err
}

func TestTLSModes(t *testing.T) {
	t.Parallel()
	ca, nameless := authority(t)
	_, named := authority(t, "db.example")
	otherCA, _ := authority(t)
	namedCA, named2 := authority(t, "db.example")
	require.NoError(t, handshake(t, nameless, database.TLSRequired, "", "db.example"))
	require.NoError(t, handshake(t, nameless, database.TLSVerifyCA, ca, "db.example"))
	require.Error(t, handshake(t, nameless, database.TLSVerifyCA, otherCA, "db.example"), "signed by somebody else")
	require.Error(t, handshake(t, nameless, database.TLSVerifyIdentity, ca, "db.example"), "for no name")
	require.NoError(t, handshake(t, named2, database.TLSVerifyIdentity, namedCA, "db.example"))
	require.Error(t, handshake(t, named2, database.TLSVerifyIdentity, namedCA, "evil.example"))
	require.Error(t, handshake(t, named, database.TLSVerifyIdentity, namedCA, "db.example"), "signed by somebody else")

	off, err := database.ClientTLS(database.TLSOff, "")
	require.NoError(t, err)
	require.Nil(t, off)
	for mode, file := range map[database.TLSMode]string{"maybe": ca, database.TLSVerifyCA: "/nowhere.pem"} {
		_, err := database.ClientTLS(mode, file)
		require.Error(t, err)
	}
	empty := filepath.Join(t.TempDir(), "empty.pem")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	_, err = database.ClientTLS(database.TLSVerifyCA, empty)
	require.ErrorContains(t, err, "holds no PEM certificate")
}

func TestMySQLOverTLS(t *testing.T) {
	t.Parallel()
	dsn := enginetest.MySQL(t)
	for mode, encrypted := range map[database.TLSMode]bool{database.TLSOff: false, database.TLSRequired: true} {
		cfg, err := database.ClientTLS(mode, "")
		require.NoError(t, err)
		db, err := database.OpenMySQL(dsn, database.Options{TLS: cfg})
		require.NoError(t, err)
		var cipher struct{ Value string }
		require.NoError(t, db.Read.WithContext(context.Background()).Raw("SHOW SESSION STATUS LIKE 'Ssl_cipher'").Scan(&cipher).Error)
		require.Equal(t, encrypted, cipher.Value != "", "%s: %q", mode, cipher.Value)
		require.NoError(t, db.Close())
	}
}
