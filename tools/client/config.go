// Package client reads the client configuration and calls the API with a personal access token.
package client

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// Config is the client configuration file.
type Config struct {
	// Server is the URL of the state service's API.
	Server string `json:"server,omitempty"`
	// DeploysServer is the URL of the deploys service's API.
	DeploysServer string `json:"deploys_server,omitempty"`
	// RunnersServer is the URL of the runners service's API, or of a router in front of it.
	RunnersServer string `json:"runners_server,omitempty"`
	// AdmissionServer is the URL of the admission service's API.
	AdmissionServer string `json:"admission_server,omitempty"`
	// RelayServer is the URL of a relay's external listener. RelayCAFile is a PEM file with the CA
	// certificates to trust there. Defaults to those of the system.
	RelayServer string `json:"relay_server,omitempty"`
	RelayCAFile string `json:"relay_ca_file,omitempty"`
	// GatewayCAFile is a PEM file with the CA certificates to trust at the gateway. Defaults to those of the system.
	GatewayCAFile string `json:"gateway_ca_file,omitempty"`
	// TokenFile is the path of the file with the personal access token.
	TokenFile string `json:"token_file,omitempty"`
	// LoginName is in the name of the personal access token that lockstep login has stored in TokenFile.
	LoginName string `json:"login_name,omitempty"`
	// NATSURL, NATSSeedFile and NATSCAFile configure the connection to NATS.
	NATSURL      string `json:"nats_url,omitempty"`
	NATSSeedFile string `json:"nats_seed_file,omitempty"`
	NATSCAFile   string `json:"nats_ca_file,omitempty"`
	// Cell is the cell's name. Defaults to local.
	Cell string `json:"cell,omitempty"`
}

// Variable names the environment variable with the path of the configuration.
const Variable = "LOCKSTEP_CLIENT"

const fileMode = 0o600

// DefaultFile returns the default path of the client configuration: $LOCKSTEP_CLIENT, else
// lockstep/client.yaml in the user's configuration folder.
func DefaultFile() string {
	if path := os.Getenv(Variable); path != "" {
		return path
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "client.yaml"
	}
	return filepath.Join(dir, "lockstep", "client.yaml")
}

// Write writes the configuration to a file that only its user can read.
func (c Config) Write(path string) error {
	raw, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("client configuration: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("client configuration: %w", err)
	}
	if err := os.WriteFile(path, raw, fileMode); err != nil {
		return fmt.Errorf("client configuration: %w", err)
	}
	return nil
}

// plainYAML returns an error of package yaml without how it reads YAML.
func plainYAML(err error) string {
	text := err.Error()
	for _, prefix := range []string{
		"error converting YAML to JSON: ", "yaml: ", "error unmarshaling JSON: ", "while decoding JSON: ", "json: ",
	} {
		text = strings.TrimPrefix(text, prefix)
	}
	return text
}

// Read reads the configuration from a file. A missing file is an empty configuration. Fault
// invalid_argument: the file is unreadable or malformed.
func Read(path string) (Config, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return Config{}, nil
	}
	if err != nil {
		return Config{}, fault.Wrap(err, errcode.InvalidArgument, "the client configuration %s cannot be read: %v", path, err)
	}
	var c Config
	if err := yaml.UnmarshalStrict(raw, &c); err != nil {
		return Config{}, fault.Wrap(err, errcode.InvalidArgument, "the client configuration %s is malformed: %s", path,
			plainYAML(err))
	}
	return c, nil
}
