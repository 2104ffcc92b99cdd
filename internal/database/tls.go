package database

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLSMode says how far a MySQL server's identity is checked; the modes are those of MySQL's own clients.
type TLSMode string

// The modes.
const (
	TLSOff            TLSMode = "off"
	TLSRequired       TLSMode = "required"        // encrypted, the server is not verified
	TLSVerifyCA       TLSMode = "verify-ca"       // signed by the authority
	TLSVerifyIdentity TLSMode = "verify-identity" // signed by the authority for this host name
)

// ClientTLS is the TLS configuration of a mode; nil for TLSOff. caFile is a PEM file of authorities; empty means the
// system's.
func ClientTLS(mode TLSMode, caFile string) (*tls.Config, error) {
	if mode == TLSOff || mode == "" {
		return nil, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("certificate authorities: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("certificate authorities: %s holds no PEM certificate", caFile)
		}
	}
	switch mode {
	case TLSRequired:
		cfg.InsecureSkipVerify = true
	case TLSVerifyCA:
		// Go has no mode that checks the authority and not the name, which is what certificates made by mysqld
		// itself need: they carry no host name.
		cfg.InsecureSkipVerify = true
		cfg.VerifyConnection = func(state tls.ConnectionState) error { return verifyAuthority(state, cfg.RootCAs) }
	case TLSVerifyIdentity:
	default:
		return nil, fmt.Errorf("TLS mode %q is not known", mode)
	}
	return cfg, nil
}

func verifyAuthority(state tls.ConnectionState, roots *x509.CertPool) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the server sent no certificate")
	}
	chain := x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		chain.AddCert(c)
	}
	_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: chain})
	return err
}
