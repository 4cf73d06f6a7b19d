package state

import (
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/state/domain"
)

// Config of the state service.
type Config struct {
	service.Config `yaml:",inline"`

	Telemetry telemetry.Config `yaml:"telemetry"`
	API       service.Listener `yaml:"api" help:"the API for people: Connect, gRPC and JSON over HTTP"`
	Cell      CellConfig       `yaml:"cell"`
	Database  DatabaseConfig   `yaml:"database"`
	NATS      natsconn.Config  `yaml:"nats"`
	Agents    AgentsConfig     `yaml:"agents"`
	Streams   StreamsConfig    `yaml:"streams"`
	Secrets   SecretsConfig    `yaml:"secrets"`
	Workspace WorkspaceConfig  `yaml:"workspace"`
	Bootstrap BootstrapConfig  `yaml:"bootstrap"`
}

// CellConfig says which cell this is.
type CellConfig struct {
	Name   string `yaml:"name" help:"name of the cell, a DNS label: the second token of every subject"`
	Number int64  `yaml:"number" help:"number of the cell, from 0 to 8191, which no other cell has: its ids begin at number * 2^40"`
}

// DatabaseConfig says where PostgreSQL is.
type DatabaseConfig struct {
	URL            config.URL    `yaml:"url" help:"PostgreSQL connection string; or give url_file"`
	URLFile        config.Secret `yaml:"url_file" help:"file with the connection string, where it holds a password"`
	MaxConnections int           `yaml:"max_connections" help:"connections of this process; 0 = 10, or pool_max_conns of the connection string"`
}

// AgentsConfig says how agents are let in.
type AgentsConfig struct {
	KeysDir string   `yaml:"keys_dir" help:"folder that lockstep nats init wrote: it holds the keys by which this service admits and cuts agents"`
	URLs    []string `yaml:"urls" help:"where agents find NATS; empty = nats.url"`
	CAFile  string   `yaml:"ca_file" help:"PEM file with the authorities that vouch for NATS to agents; empty = those of their systems"`
}

// StreamsConfig sizes the streams.
type StreamsConfig struct {
	Replicas int          `yaml:"replicas" help:"copies of each stream: 1, or 3 on a cluster of NATS servers"`
	Storage  config.Bytes `yaml:"storage" help:"what all streams together may fill on one server"`
}

// SecretsConfig names the keys that secrets are kept with.
type SecretsConfig struct {
	SealSeedFile  config.Secret `yaml:"seal_seed_file" help:"file with the X25519 seed (nkeys) that secret values are sealed with; lockstep state init makes it. Losing it loses them"`
	DigestKeyFile config.Secret `yaml:"digest_key_file" help:"file with the key of the digests of secret values; lockstep state init makes it"`
}

// WorkspaceConfig sets what workspaces have in common.
type WorkspaceConfig struct {
	NamespacePrefix string `yaml:"namespace_prefix" help:"beginning of the namespaces of workspaces; dispatchers refuse others"`
	Image           string `yaml:"image" help:"image of the template default, made at the first start"`
}

// BootstrapConfig makes the first administrator.
type BootstrapConfig struct {
	AdminTokenFile config.Secret `yaml:"admin_token_file" help:"file with a personal access token of the user admin, who is made with it when nobody has it; lockstep state init makes it"`
}

const maxCellNumber = 1<<13 - 1

// DefaultConfig is for one machine; database and keys have to be given.
func DefaultConfig() Config {
	return Config{
		Config:    service.DefaultConfig("127.0.0.1:8081"),
		Telemetry: telemetry.DefaultConfig(),
		API:       service.DefaultListener("127.0.0.1:8080"),
		Cell:      CellConfig{Name: "local"},
		NATS:      natsconn.DefaultConfig(),
		Streams:   StreamsConfig{Replicas: 1, Storage: config.Bytes(topology.DefaultStorageBytes)},
		Workspace: WorkspaceConfig{NamespacePrefix: domain.DefaultNamespacePrefix, Image: "mcr.microsoft.com/devcontainers/base:debian"},
	}
}

// Validate checks what the parts do not.
func (c Config) Validate() []error {
	var errs []error
	if err := topology.ValidateCell(c.Cell.Name); err != nil {
		errs = append(errs, config.Invalid("cell.name", "%v", err))
	}
	if c.Cell.Number < 0 || c.Cell.Number > maxCellNumber {
		errs = append(errs, config.Invalid("cell.number", "%d is not between 0 and %d", c.Cell.Number, maxCellNumber))
	}
	if (c.Database.URL == "") != c.Database.URLFile.IsSet() {
		errs = append(errs, config.Invalid("database.url", "give either database.url or database.url_file"))
	}
	if c.Agents.KeysDir == "" {
		errs = append(errs, config.Invalid("agents.keys_dir", "is empty: run lockstep nats init and give its folder"))
	}
	if c.Streams.Replicas != 1 && c.Streams.Replicas != 3 && c.Streams.Replicas != 5 {
		errs = append(errs, config.Invalid("streams.replicas", "%d is not 1, 3 or 5", c.Streams.Replicas))
	}
	if !c.Secrets.SealSeedFile.IsSet() || !c.Secrets.DigestKeyFile.IsSet() {
		errs = append(errs, config.Invalid("secrets.seal_seed_file", "seal_seed_file and digest_key_file are needed: run lockstep state init"))
	}
	return errs
}
