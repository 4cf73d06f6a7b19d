package stack

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// RelayKeys are the files that relays share: their secret, and a self-signed certificate, with its key.
type RelayKeys struct {
	SecretFile, CertFile, KeyFile string
}

// lifetime of the certificate.
const lifetime = 10 * 365 * 24 * time.Hour

// InitRelay creates missing relay files in a folder, with mode 0600. It never replaces a file. The certificate
// is for localhost and the hosts given. The map reports which files were created.
func InitRelay(dir string, hosts ...string) (RelayKeys, map[string]bool, error) {
	keys := RelayKeys{
		SecretFile: filepath.Join(dir, "relay.secret"), CertFile: filepath.Join(dir, "relay.crt"),
		KeyFile: filepath.Join(dir, "relay.key"),
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return keys, nil, fmt.Errorf("create the folder of keys: %w", err)
	}
	made := map[string]bool{}
	// The certificate uses an existing key.
	for _, each := range []struct {
		path     string
		generate func() (string, error)
	}{
		{keys.SecretFile, relaySecret},
		{keys.KeyFile, privateKey},
		{keys.CertFile, func() (string, error) {
			return certificate("lockstep relay", keys.KeyFile, append([]string{"localhost", "127.0.0.1", "::1"}, hosts...))
		}},
	} {
		created, err := writeOnce(each.path, each.generate)
		if err != nil {
			return keys, nil, fmt.Errorf("create %s: %w", each.path, err)
		}
		made[each.path] = created
	}
	return keys, made, nil
}

// PublishCA writes the certificate, which is no secret, to a file in another folder, for clients, and reports
// whether it was created.
func (k RelayKeys) PublishCA(file string) (bool, error) {
	made, err := copyOnce(k.CertFile, file)
	if err != nil {
		return false, err
	}
	if err := os.Chmod(file, 0o644); err != nil { //nolint:gosec // it is for everybody
		return made, fmt.Errorf("create %s: %w", file, err)
	}
	return made, nil
}

func relaySecret() (string, error) {
	var secret [48]byte
	rand.Read(secret[:]) // never fails
	return base64.StdEncoding.EncodeToString(secret[:]), nil
}

const keyBlock = "PRIVATE KEY"

func privateKey() (string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", fmt.Errorf("create a key: %w", err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", fmt.Errorf("create a key: %w", err)
	}
	return block(keyBlock, raw), nil
}

// block encodes PEM without the trailing newline.
func block(kind string, raw []byte) string {
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw})
	return string(text[:len(text)-1])
}

// certificate of hosts for the key in the file, signed with it.
func certificate(name, keyFile string, hosts []string) (string, error) {
	text, err := os.ReadFile(keyFile)
	if err != nil {
		return "", fmt.Errorf("read its key: %w", err)
	}
	decoded, _ := pem.Decode(text)
	if decoded == nil || decoded.Type != keyBlock {
		return "", fmt.Errorf("%s is not a private key in PEM", keyFile)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(decoded.Bytes)
	if err != nil {
		return "", fmt.Errorf("read its key: %w", err)
	}
	key, is := parsed.(*ecdsa.PrivateKey)
	if !is {
		return "", fmt.Errorf("%s is not an ECDSA key", keyFile)
	}
	number, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return "", fmt.Errorf("create a serial number: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          number,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(lifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return "", fmt.Errorf("create a certificate: %w", err)
	}
	return block("CERTIFICATE", raw), nil
}
