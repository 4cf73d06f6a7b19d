package s3

import (
	"fmt"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"lockstep.internal/libs/config"
)

// rotation is how long credentials are used before their files are read again.
const rotation = time.Minute

// files provides the credentials that two files contain. The client serializes the calls.
type files struct {
	access, secret config.Secret
	now            func() time.Time
	readAt         time.Time
}

// RetrieveWithCredContext implements [credentials.Provider].
func (f *files) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	return f.Retrieve()
}

// Retrieve implements [credentials.Provider].
func (f *files) Retrieve() (credentials.Value, error) {
	access, err := f.access.Read()
	if err != nil {
		return credentials.Value{}, fmt.Errorf("s3.access_key_file: %w", err)
	}
	secret, err := f.secret.Read()
	if err != nil {
		return credentials.Value{}, fmt.Errorf("s3.secret_key_file: %w", err)
	}
	f.readAt = f.now()
	return credentials.Value{
		AccessKeyID: access, SecretAccessKey: secret, SignerType: credentials.SignatureV4,
	}, nil
}

// IsExpired implements [credentials.Provider].
func (f *files) IsExpired() bool { return f.now().Sub(f.readAt) >= rotation }
