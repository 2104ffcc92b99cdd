package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"
)

// CheckOperatorAddress returns an error when addr (host:port) is no address to listen on, or when it can be reached
// from other machines and token is empty: profiles and redrives are not for everyone. Only localhost and loopback
// addresses are good without a token; any other name is not, whatever it resolves to today. The error names the
// remedy.
func CheckOperatorAddress(addr, token string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("operator's address %q: want host:port, for example 127.0.0.1:8081: %w", addr, err)
	}
	if err := checkToken(token); err != nil {
		return err
	}
	if token != "" || isLoopback(host) {
		return nil
	}
	return fmt.Errorf("operator's address %q can be reached from other machines and no token is set: "+
		"set the operator's token, or listen on a loopback address such as 127.0.0.1:8081", addr)
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// checkToken refuses a token that no request could carry, such as one with the newline of the file it came from.
func checkToken(token string) error {
	if strings.ContainsFunc(token, func(r rune) bool { return r < 0x21 || r > 0x7e }) {
		return errors.New("operator's token: only visible ASCII without spaces can be sent in a header")
	}
	return nil
}

// requireToken refuses requests without the token, those to unknown paths included, except on the open routes.
func requireToken(token string, open ...string) gin.HandlerFunc {
	want := sha256.Sum256([]byte(token))
	return func(c *gin.Context) {
		if slices.Contains(open, c.FullPath()) || sameToken(want, bearer(c.GetHeader("Authorization"))) {
			c.Next()
			return
		}
		c.Header("WWW-Authenticate", `Bearer realm="halfbox operator"`)
		writeProblem(c, unauthorized())
	}
}

// sameToken compares hashes, which have one length, in constant time: nothing about the token can be measured.
func sameToken(want [sha256.Size]byte, token string) bool {
	got := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1
}

// bearer returns the token of an Authorization header, empty when it has none.
func bearer(header string) string {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
