package state

import (
	"crypto/ed25519"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/idrange"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/persontoken"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/devfile/registry"
	"lockstep.internal/services/state/meter"
	"lockstep.internal/services/state/workspace"
)

// Config of the state service.
type Config struct {
	service.Config `yaml:",inline"`

	Telemetry telemetry.Config     `yaml:"telemetry"`
	API       service.Listener     `yaml:"api" help:"the API: Connect, gRPC and JSON over HTTP"`
	Access    AccessConfig         `yaml:"access"`
	Cell      CellConfig           `yaml:"cell"`
	Database  libpostgres.Settings `yaml:"database"`
	NATS      natsconn.Config      `yaml:"nats"`
	Agents    AgentsConfig         `yaml:"agents"`
	Streams   StreamsConfig        `yaml:"streams"`
	Secrets   SecretsConfig        `yaml:"secrets"`
	Workspace WorkspaceConfig      `yaml:"workspace"`
	Devfile   DevfileConfig        `yaml:"devfile"`
	Gateway   GatewayConfig        `yaml:"gateway"`
	Bootstrap BootstrapConfig      `yaml:"bootstrap"`
}

// CellConfig identifies the cell.
type CellConfig struct {
	Name   string `yaml:"name" help:"name of the cell, a DNS label: the second token of every subject"`
	Number int64  `yaml:"number" help:"number of the cell from 0 to 8191, unique among cells: ids start at number * 2^40"`
}

// GatewayConfig names the gateway of the cell, through which people enter workspaces.
type GatewayConfig struct {
	URL        string   `yaml:"url" help:"https URL of the gateway's sign-in host, shown to people; empty = the cell has none"`
	PublicKeys []string `yaml:"public_keys" help:"public keys, such as ssh-ed25519 AAAA…, of the tokens with which the gateway acts for people: it may start workspaces and create personal access tokens; up to 16"`
}

// keys returns the public keys.
func (c GatewayConfig) keys() ([]ed25519.PublicKey, error) {
	keys := make([]ed25519.PublicKey, len(c.PublicKeys))
	for i, text := range c.PublicKeys {
		var err error
		if keys[i], err = persontoken.ParsePublicKey(text); err != nil {
			return nil, fmt.Errorf("gateway.public_keys[%d]: %w", i, err)
		}
	}
	return keys, nil
}

func (c GatewayConfig) validate() []error {
	var errs []error
	if u, err := url.Parse(c.URL); c.URL != "" &&
		(err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" ||
			u.RawQuery != "" || u.Fragment != "") {
		errs = append(errs, config.Invalid("gateway.url",
			"%.200q is not the URL of a host such as https://ws.example.com", c.URL))
	}
	if len(c.PublicKeys) > persontoken.MaxKeys {
		errs = append(errs, config.Invalid("gateway.public_keys",
			"%d keys, the maximum is %d", len(c.PublicKeys), persontoken.MaxKeys))
	}
	for i, text := range c.PublicKeys {
		if _, err := persontoken.ParsePublicKey(text); err != nil {
			errs = append(errs, config.Invalid(fmt.Sprintf("gateway.public_keys[%d]", i), "%v", err))
		}
	}
	return errs
}

// AccessConfig bounds what callers of the API may have.
type AccessConfig struct {
	StreamLifetime   time.Duration `yaml:"stream_lifetime" help:"a stream of the API, such as a watch, ends after this time; at most 24h"`
	MaxTokensPerUser int           `yaml:"max_tokens_per_user" help:"maximum active personal access tokens of a user"`
}

// AgentsConfig configures the connections of agents.
type AgentsConfig struct {
	KeysDir string   `yaml:"keys_dir" help:"directory written by lockstep nats init, with the NATS keys of the auth callout and the system account"`
	URLs    []string `yaml:"urls" help:"NATS addresses for agents; empty = nats.url"`
	CAFile  string   `yaml:"ca_file" help:"PEM file with the CAs of NATS for agents; empty = system CAs"`

	SilentAfter time.Duration `yaml:"silent_after" help:"an agent whose watcher has reported nothing for this time is silent, and its workspaces are stale; several times tick_interval of the watchers, at least 1s"`

	MaxPerProject int `yaml:"max_per_project" help:"maximum agents of a project; revoked ones count for a day after their registration"`

	HourlyMessages int64        `yaml:"hourly_messages" help:"messages that an agent may publish within an hour of the clock on each stream; one that publishes more is disconnected until the hour is over; at least 350000"`
	HourlyBytes    config.Bytes `yaml:"hourly_bytes" help:"size of these messages; at least 640MiB"`
	DailyShare     int          `yaml:"daily_share" help:"percent of each stream that the messages of an agent may fill within 24 hours; one that fills more is disconnected until it is below; 1 to 100"`
	DailySubjects  int          `yaml:"daily_subjects" help:"distinct subjects that an agent may use on each stream within 24 hours; at least 50000"`
}

// StreamsConfig sizes the streams.
type StreamsConfig struct {
	Replicas int          `yaml:"replicas" help:"copies of each stream: 1, or 3 on a cluster of NATS servers"`
	Storage  config.Bytes `yaml:"storage" help:"disk space of all streams together on one server"`
}

// SecretsConfig locates the keys that protect secrets.
type SecretsConfig struct {
	SealSeedFile  config.Secret `yaml:"seal_seed_file" help:"file with the X25519 seed (nkeys) that seals secret values, created by lockstep state init; without it the values are lost"`
	DigestKeyFile config.Secret `yaml:"digest_key_file" help:"file with the key of secret digests, created by lockstep state init"`
}

// DevfileConfig configures how devfiles are read.
type DevfileConfig struct {
	Registries []string `yaml:"registries" help:"URLs of registries whose devfiles can be the parent of others, such as https://registry.devfile.io; the first is the default; empty = devfiles cannot have a parent"`
}

func (c DevfileConfig) validate() []error {
	if _, err := registry.New(c.Registries, nil); err != nil {
		return []error{config.Invalid("devfile.registries", "%v", err)}
	}
	return nil
}

// WorkspaceConfig configures all workspaces. An agent may override each setting after Image, in both directions.
type WorkspaceConfig struct {
	NamespacePrefix string `yaml:"namespace_prefix" help:"prefix of the namespaces of new workspaces; agents get it when they are registered, and refuse other namespaces"`
	Image           string `yaml:"image" help:"image of the default template, created at the first start"`

	AgentImage       string        `yaml:"agent_image" help:"image of the workspace agent, which clones projects and serves SSH in every workspace; empty = workspaces have no agent"`
	SSHAuthorities   []string      `yaml:"ssh_authorities" help:"public keys that sign the certificates of SSH connections to workspaces, such as ssh-ed25519 AAAA…"`
	IngressPeers     []string      `yaml:"ingress_peers" help:"pods that may connect to workspaces: NAMESPACE:LABEL=VALUE, with further labels after further colons; {agent_id} stands for the id of the workspace's agent"`
	DNSPeers         []string      `yaml:"dns_peers" help:"pods that answer DNS queries of workspaces, written as ingress_peers"`
	PrivateRanges    []string      `yaml:"private_ranges" help:"networks that workspaces may not reach, such as 10.0.0.0/8, unless their agent has others"`
	EgressAllowed    []string      `yaml:"egress_allowed" help:"exceptions from private_ranges, such as 10.1.2.0/24"`
	ProgressDeadline time.Duration `yaml:"progress_deadline" help:"a workspace that is not ready after this time is failed; whole seconds, 1s to 24h"`
	ResourceQuota    bool          `yaml:"resource_quota" help:"limit each workspace's namespace to the workspace with a ResourceQuota"`
	OwnerAccess      bool          `yaml:"owner_access" help:"let the owner of each workspace use the Kubernetes API in its namespace, through the relay; agents of older versions refuse workspaces with it"`
	StorageClass     string        `yaml:"storage_class" help:"StorageClass of the volumes of new workspaces; empty = the cluster's default"`

	DefaultCPU        string `yaml:"default_cpu" help:"CPU of new workspaces, if neither the request nor the template sets it"`
	DefaultMemory     string `yaml:"default_memory" help:"memory of new workspaces, if neither the request nor the template sets it"`
	DefaultVolumeSize string `yaml:"default_volume_size" help:"size of the volume of new workspaces, if neither the request nor the template sets it"`
	MaxCPU            string `yaml:"max_cpu" help:"maximum CPU of a workspace, unless its agent has another one; empty = unlimited"`
	MaxMemory         string `yaml:"max_memory" help:"maximum memory of a workspace, unless its agent has another one; empty = unlimited"`
	MaxVolumeSize     string `yaml:"max_volume_size" help:"maximum size of the volume of a workspace, unless its agent has another one; empty = unlimited"`

	TerminationPatience time.Duration `yaml:"termination_patience" help:"a workspace whose deletion takes longer has an error, and the deletion goes on; 0 = never"`
}

func defaultWorkspaceConfig() WorkspaceConfig {
	c := agent.DefaultConfiguration()
	return WorkspaceConfig{
		NamespacePrefix:   workspace.DefaultNamespacePrefix,
		Image:             "mcr.microsoft.com/devcontainers/base:debian",
		IngressPeers:      c.Manifests.IngressPeers,
		DNSPeers:          c.Manifests.DNSPeers,
		PrivateRanges:     c.Manifests.PrivateRanges,
		EgressAllowed:     c.Manifests.EgressAllowed,
		ProgressDeadline:  c.Manifests.ProgressDeadline,
		ResourceQuota:     c.Manifests.ResourceQuota,
		OwnerAccess:       c.Manifests.OwnerAccess,
		StorageClass:      c.StorageClass,
		DefaultCPU:        c.Defaults.CPU,
		DefaultMemory:     c.Defaults.Memory,
		DefaultVolumeSize: c.Defaults.VolumeSize,
		MaxCPU:            c.Maximums.CPU,
		MaxMemory:         c.Maximums.Memory,
		MaxVolumeSize:     c.Maximums.VolumeSize,

		TerminationPatience: c.TerminationPatience,
	}
}

// Manifests returns how the objects of workspaces are rendered, unless an agent overrides it.
func (c WorkspaceConfig) Manifests() agent.Manifests { return c.settings().Configuration().Manifests }

// settings returns the settings of the cell, which agents override.
func (c WorkspaceConfig) settings() agent.Settings {
	return agent.Settings{
		AgentImage:        &c.AgentImage,
		SSHAuthorities:    list(c.SSHAuthorities),
		IngressPeers:      list(c.IngressPeers),
		DNSPeers:          list(c.DNSPeers),
		PrivateRanges:     list(c.PrivateRanges),
		EgressAllowed:     list(c.EgressAllowed),
		ProgressDeadline:  new(agent.Milliseconds(c.ProgressDeadline.Truncate(time.Millisecond))),
		ResourceQuota:     &c.ResourceQuota,
		OwnerAccess:       &c.OwnerAccess,
		StorageClass:      &c.StorageClass,
		DefaultCPU:        &c.DefaultCPU,
		DefaultMemory:     &c.DefaultMemory,
		DefaultVolumeSize: &c.DefaultVolumeSize,
		MaxCPU:            &c.MaxCPU,
		MaxMemory:         &c.MaxMemory,
		MaxVolumeSize:     &c.MaxVolumeSize,

		TerminationPatience: new(agent.Milliseconds(c.TerminationPatience.Truncate(time.Millisecond))),
	}
}

// list returns a list that is stored as an empty one, not as none, if it is empty.
func list(values []string) *[]string {
	values = append([]string{}, values...)
	return &values
}

// validate returns all errors, for agents with ids up to lastAgent.
func (c WorkspaceConfig) validate(lastAgent int64) []error {
	var errs []error
	if err := workspace.CheckNamespacePrefix(c.NamespacePrefix, lastAgent); err != nil {
		errs = append(errs, config.Invalid("workspace.namespace_prefix", "%v", err))
	}
	found := fault.From(c.settings().Configuration().Validate())
	if found == nil {
		return errs
	}
	for _, field := range slices.Sorted(maps.Keys(found.Details)) {
		errs = append(errs, config.Invalid("workspace."+field, "%s", found.Details[field]))
	}
	return errs
}

// BootstrapConfig creates the first administrator.
type BootstrapConfig struct {
	AdminTokenFile config.Secret `yaml:"admin_token_file" help:"file with the personal access token of the first administrator, created by lockstep state init"`
}

const (
	maxCellNumber = 1<<13 - 1
	// maxTokensPerUser leaves room in the directory for as many revoked tokens.
	maxTokensPerUser = 500
)

// DefaultConfig returns the defaults for a single machine. Database and keys have none.
func DefaultConfig() Config {
	return Config{
		Config:    service.DefaultConfig("127.0.0.1:8081"),
		Telemetry: telemetry.DefaultConfig(),
		API:       service.DefaultListener("127.0.0.1:8080"),
		Access:    AccessConfig{StreamLifetime: access.DefaultStreamLifetime, MaxTokensPerUser: 50},
		Cell:      CellConfig{Name: "local"},
		NATS:      natsconn.DefaultConfig(),
		Agents: AgentsConfig{
			SilentAfter:    time.Minute,
			MaxPerProject:  200,
			HourlyMessages: meter.Default().Messages,
			HourlyBytes:    config.Bytes(meter.Default().Bytes),
			DailyShare:     75,
			DailySubjects:  meter.Default().DailySubjects,
		},
		Streams:   StreamsConfig{Replicas: 1, Storage: config.Bytes(topology.DefaultStorageBytes)},
		Workspace: defaultWorkspaceConfig(),
	}
}

// Validate checks what the types of the fields do not check.
func (c Config) Validate() []error {
	var errs []error
	if err := topology.ValidateCell(c.Cell.Name); err != nil {
		errs = append(errs, config.Invalid("cell.name", "%v", err))
	}
	if err := access.ValidateStreamLifetime(c.Access.StreamLifetime); err != nil {
		errs = append(errs, config.Invalid("access.stream_lifetime", "%v", err))
	}
	if c.Access.MaxTokensPerUser < 1 || c.Access.MaxTokensPerUser > maxTokensPerUser {
		errs = append(errs, config.Invalid("access.max_tokens_per_user", "%d is not between 1 and %d",
			c.Access.MaxTokensPerUser, maxTokensPerUser))
	}
	if c.Cell.Number < 0 || c.Cell.Number > maxCellNumber {
		errs = append(errs, config.Invalid("cell.number", "%d is not between 0 and %d", c.Cell.Number, maxCellNumber))
	}
	if c.Agents.KeysDir == "" {
		errs = append(errs,
			config.Invalid("agents.keys_dir", "is missing: run lockstep nats init and set the directory that it writes"))
	}
	if err := natsauth.ValidateServerURLs(c.agentURLs()); err != nil {
		errs = append(errs, config.Invalid("agents.urls", "%v; the default is nats.url", err))
	}
	errs = append(errs, c.Agents.validateLimits()...)
	errs = append(errs, c.Gateway.validate()...)
	errs = append(errs, c.Devfile.validate()...)
	errs = append(errs, c.Workspace.validate(idrange.OfCell(c.Cell.Number).Last)...)
	if c.Streams.Replicas != 1 && c.Streams.Replicas != 3 && c.Streams.Replicas != 5 {
		errs = append(errs, config.Invalid("streams.replicas", "%d is not 1, 3 or 5", c.Streams.Replicas))
	}
	if !c.Secrets.SealSeedFile.IsSet() || !c.Secrets.DigestKeyFile.IsSet() {
		errs = append(
			errs,
			config.Invalid("secrets.seal_seed_file", "seal_seed_file and digest_key_file are missing: run lockstep state init"),
		)
	}
	return errs
}

// agentURLs returns the addresses of NATS that new agents get.
func (c Config) agentURLs() []string {
	if len(c.Agents.URLs) > 0 {
		return c.Agents.URLs
	}
	var urls []string
	for each := range strings.SplitSeq(c.NATS.URL.Reveal(), ",") {
		if each = strings.TrimSpace(each); !strings.Contains(each, "://") {
			each = "nats://" + each
		}
		urls = append(urls, each)
	}
	return urls
}

// limits returns the limits of one agent on each stream.
func (c Config) limits() meter.Limits {
	limits := meter.Limits{
		Messages: c.Agents.HourlyMessages, Bytes: int64(c.Agents.HourlyBytes), DailySubjects: c.Agents.DailySubjects,
		DailyBytes: map[string]int64{},
	}
	for _, stream := range topology.Streams() {
		size := stream.Config(topology.Cell(c.Cell.Name), topology.Options{StorageBytes: int64(c.Streams.Storage)}).MaxBytes
		limits.DailyBytes[stream.Name] = size / 100 * int64(c.Agents.DailyShare)
	}
	return limits
}

func (c AgentsConfig) validateLimits() []error {
	least := meter.Minimum()
	var errs []error
	if c.DailyShare < 1 || c.DailyShare > 100 {
		errs = append(errs, config.Invalid("agents.daily_share", "%d is not between 1 and 100", c.DailyShare))
	}
	if c.SilentAfter < time.Second {
		errs = append(errs, config.Invalid("agents.silent_after", "%s is less than 1s", c.SilentAfter))
	}
	if c.MaxPerProject < 1 {
		errs = append(errs, config.Invalid("agents.max_per_project", "%d is less than 1", c.MaxPerProject))
	}
	for _, limit := range []struct {
		path         string
		value, least int64
	}{
		{"agents.hourly_messages", c.HourlyMessages, least.Messages},
		{"agents.hourly_bytes", int64(c.HourlyBytes), least.Bytes},
		{"agents.daily_subjects", int64(c.DailySubjects), int64(least.DailySubjects)},
	} {
		if limit.value < limit.least {
			errs = append(errs, config.Invalid(limit.path,
				"%d is less than %d, the full resync of an agent with 50,000 workspaces", limit.value, limit.least))
		}
	}
	return errs
}
