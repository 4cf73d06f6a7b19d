package certpool

import (
	"crypto/x509"
	"fmt"
	"os"
)

// Load returns the authorities in a PEM file.
func Load(file string) (*x509.CertPool, error) {
	pool, _, err := read(file)
	return pool, err
}

// ReadPEM returns a PEM file that holds authorities as it is.
func ReadPEM(file string) ([]byte, error) {
	_, pem, err := read(file)
	return pem, err
}

func read(file string) (*x509.CertPool, []byte, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read the authorities: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, nil, fmt.Errorf("%s holds no certificate", file)
	}
	return pool, pem, nil
}
