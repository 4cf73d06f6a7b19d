package certpool

import (
	"crypto/x509"
	"fmt"
	"os"
)

// Load returns the CA certificates of a PEM file.
func Load(file string) (*x509.CertPool, error) {
	pool, _, err := read(file)
	return pool, err
}

// ReadPEM returns the content of a PEM file that contains CA certificates.
func ReadPEM(file string) ([]byte, error) {
	_, pem, err := read(file)
	return pem, err
}

func read(file string) (*x509.CertPool, []byte, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("read CA certificates: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, nil, fmt.Errorf("%s contains no certificate", file)
	}
	return pool, pem, nil
}
