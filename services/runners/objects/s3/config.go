package s3

import (
	"net/url"

	"github.com/minio/minio-go/v7/pkg/s3utils"

	"lockstep.internal/libs/certpool"
	"lockstep.internal/libs/config"
	"lockstep.internal/services/runners/objects/object"
)

// Config of a store.
type Config struct {
	Endpoint      config.URL    `yaml:"endpoint" help:"address of the store: https://s3.example.com, or http:// without TLS"`
	Bucket        string        `yaml:"bucket" help:"existing bucket"`
	Region        string        `yaml:"region" help:"region of the bucket"`
	Prefix        string        `yaml:"prefix" help:"begins the key of each object, such as lockstep/cell-1; several cells may share a bucket"`
	PathStyle     bool          `yaml:"path_style" help:"address the bucket as endpoint/bucket; false: as bucket.endpoint"`
	AccessKeyFile config.Secret `yaml:"access_key_file" help:"file with the access key; read again after a minute"`
	SecretKeyFile config.Secret `yaml:"secret_key_file" help:"file with the secret key; read again after a minute"`
	CAFile        string        `yaml:"ca_file" help:"CA certificates (PEM) of the store; empty = those of the system"`
	Presign       bool          `yaml:"presign" help:"let clients download from the store with a signed URL; they must reach the endpoint"`
}

// DefaultConfig returns a store without address.
func DefaultConfig() Config { return Config{Region: "us-east-1", PathStyle: true} }

// Problems returns the errors of the settings if this store is used.
func (c Config) Problems() []error {
	var problems []error
	if _, err := c.address(); err != nil {
		problems = append(problems, err)
	}
	if err := s3utils.CheckValidBucketNameStrict(c.Bucket); err != nil {
		problems = append(problems, config.Invalid("s3.bucket", "%q: %v", c.Bucket, err))
	}
	if c.Region == "" {
		problems = append(problems, config.Invalid("s3.region", "is empty: use us-east-1 if the store has no regions"))
	}
	if err := object.ValidateKey(c.Prefix); err != nil && c.Prefix != "" {
		problems = append(problems, config.Invalid("s3.prefix", "%v", err))
	}
	if !c.AccessKeyFile.IsSet() {
		problems = append(problems, config.Invalid("s3.access_key_file", "is not set: name a file"))
	}
	if !c.SecretKeyFile.IsSet() {
		problems = append(problems, config.Invalid("s3.secret_key_file", "is not set: name a file"))
	}
	if c.CAFile != "" {
		if _, err := certpool.Load(c.CAFile); err != nil {
			problems = append(problems, config.Invalid("s3.ca_file", "%v", err))
		}
	}
	return problems
}

// address returns the parsed endpoint.
func (c Config) address() (*url.URL, error) {
	address, err := url.Parse(c.Endpoint.Reveal())
	switch {
	case err != nil || (address.Scheme != "http" && address.Scheme != "https") || address.Host == "":
		return nil, config.Invalid("s3.endpoint", "%q is no address: use https://host or https://host:port", c.Endpoint)
	case address.User != nil || address.RawQuery != "" || (address.Path != "" && address.Path != "/"):
		return nil, config.Invalid("s3.endpoint", "must have no user, path or query: use https://host or https://host:port")
	}
	return address, nil
}
