package runners

import (
	"net/url"
	"time"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/runners/artifact"
	"lockstep.internal/services/runners/execution"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/objects"
	"lockstep.internal/services/runners/schedule"
	"lockstep.internal/services/runners/signing"
	"lockstep.internal/services/runners/stuck"
	"lockstep.internal/services/runners/trace"
)

// Config of the runners service.
type Config struct {
	service.Config `yaml:",inline"`

	Telemetry telemetry.Config  `yaml:"telemetry"`
	API       service.Listener  `yaml:"api" help:"the API of GitLab runners and of people: HTTP, Connect, gRPC"`
	Access    AccessConfig      `yaml:"access"`
	Cell      CellConfig        `yaml:"cell"`
	Database  postgres.Settings `yaml:"database"`
	NATS      natsconn.Config   `yaml:"nats"`
	Map       MapConfig         `yaml:"map"`
	Move      MoveConfig        `yaml:"move"`
	State     StateConfig       `yaml:"state"`
	Signing   signing.Config    `yaml:"signing"`
	Queue     QueueConfig       `yaml:"queue"`
	Admission AdmissionConfig   `yaml:"admission"`
	Traces    TracesConfig      `yaml:"traces"`
	Artifacts ArtifactsConfig   `yaml:"artifacts"`
	Runners   ProgramsConfig    `yaml:"runners"`
	Registry  RegistryConfig    `yaml:"registry"`
}

// AccessConfig bounds what callers of the API may have.
type AccessConfig struct {
	StreamLifetime time.Duration `yaml:"stream_lifetime" help:"a stream of the API, such as a watch, ends after this time; at most 24h"`
	MaxStreams     int           `yaml:"max_streams_per_user" help:"pipelines and traces that a user may watch at once on one replica"`
}

// CellConfig identifies the cell.
type CellConfig struct {
	Name        string `yaml:"name" help:"name of the cell, a DNS label: the second token of every subject"`
	Number      int64  `yaml:"number" help:"number of the cell from 0 to 8191, unique among cells: ids start at number * 2^40"`
	URL         string `yaml:"url" help:"address of this service for routers, such as https://runners.cell-1.example; empty: the cell is not in the cell map"`
	RedirectURL string `yaml:"redirect_url" help:"address of this service for runners; if it is set, routers redirect to it instead of forwarding"`
	PublicURL   string `yaml:"public_url" help:"address of the router or of this service for jobs, as CI_SERVER_URL; empty: jobs do not know it"`
}

// MapConfig is the NATS with the cell map, if that is the NATS of another cell.
type MapConfig struct {
	URL          config.URL    `yaml:"url" help:"NATS servers with the cell map; empty: those of nats.url"`
	NKeySeedFile config.Secret `yaml:"nkey_seed_file" help:"file with the nkey seed that lockstep nats init --map-cells makes for this cell"`
	CAFile       string        `yaml:"ca_file" help:"PEM file with trusted CA certificates of these servers; empty = those of the system"`
}

// MoveConfig is about moves of organizations to other cells.
type MoveConfig struct {
	Timeout time.Duration `yaml:"timeout" help:"a move of an organization is canceled if it copies for longer"`
	CAFile  string        `yaml:"ca_file" help:"PEM file with the CAs of other cells' runners services; empty = the system's"`
}

// StateConfig locates the state service.
type StateConfig struct {
	URL    string `yaml:"url" help:"address of the API of the state service, which knows personal access tokens; empty: users cannot create runners through GitLab's API"`
	CAFile string `yaml:"ca_file" help:"PEM file with the CAs of its certificate; empty = the system's"`
}

// QueueConfig is how long jobs and runners wait.
type QueueConfig struct {
	Hold           time.Duration `yaml:"hold" help:"time that a request for a job waits for one, less than 10m; proxies must not close silent connections earlier"`
	ConfirmTimeout time.Duration `yaml:"confirm_timeout" help:"a job waits again if the runner that took it sends no request about it in this time"`
	SilenceTimeout time.Duration `yaml:"silence_timeout" help:"a running job fails if its runner sends no request about it in this time"`
	CancelTimeout  time.Duration `yaml:"cancel_timeout" help:"the same for a job that is being canceled: it is canceled"`
	StuckTimeout   time.Duration `yaml:"stuck_timeout" help:"a job fails if it waits longer for a runner"`
	MatchTimeout   time.Duration `yaml:"match_timeout" help:"a job fails if it waits longer and no runner of the cell could ever take it"`
}

// AdmissionConfig is about jobs that wait for admission before they wait for a runner.
type AdmissionConfig struct {
	Enabled bool          `yaml:"enabled" help:"jobs wait until the service admission admits them; without it, jobs that wait for admission go on"`
	Timeout time.Duration `yaml:"timeout" help:"a job fails if it waits longer for admission, at most 24h"`
}

// TracesConfig is about the output of jobs.
type TracesConfig struct {
	Limit config.Bytes `yaml:"limit" help:"largest output of a job; what follows is refused, and the job goes on"`
}

// ArtifactsConfig is about the files that jobs leave.
type ArtifactsConfig struct {
	Store     objects.Config `yaml:"store"`
	MaxSize   config.Bytes   `yaml:"max_size" help:"largest archive of a job"`
	ExpireIn  time.Duration  `yaml:"expire_in" help:"time until artifacts expire whose job does not say it; 0: they never expire"`
	MaxExpire time.Duration  `yaml:"max_expire_in" help:"longest time until artifacts expire; 0: no limit"`
}

// ProgramsConfig is about the registration of runners.
type ProgramsConfig struct {
	TokenLifetime         time.Duration `yaml:"token_lifetime" help:"time until the token of a runner expires; runners replace it before; 0: never"`
	RegistrationTokenFile config.Secret `yaml:"registration_token_file" help:"file with a registration token, which makes runners of the instance; empty: registration tokens are off"`
}

// RegistryConfig is the container registry that job tokens are for.
type RegistryConfig struct {
	Host    string `yaml:"host" help:"container registry of the projects, such as registry.example:5000; empty for none"`
	Service string `yaml:"service" help:"name of the registry in its configuration: the audience of tokens"`
	Issuer  string `yaml:"issuer" help:"name of this service in the configuration of the registry"`
}

// DefaultConfig returns the configuration for one machine. The database, the keys and the folder of artifacts have no
// default.
func DefaultConfig() Config {
	rules, waits, expiry := execution.DefaultRules(), stuck.DefaultRules(), artifact.DefaultExpiry()
	c := Config{
		Config:    service.DefaultConfig("127.0.0.1:8095"),
		Telemetry: telemetry.DefaultConfig(),
		API:       service.DefaultListener("127.0.0.1:8094"),
		Access:    AccessConfig{StreamLifetime: access.DefaultStreamLifetime, MaxStreams: 50},
		Cell:      CellConfig{Name: "local"},
		NATS:      natsconn.DefaultConfig(),
		Queue: QueueConfig{
			Hold: gitlab.DefaultHold, ConfirmTimeout: rules.Confirm, SilenceTimeout: rules.Silence, CancelTimeout: rules.Cancel,
			StuckTimeout: waits.Stuck, MatchTimeout: waits.Unmatched,
		},
		Admission: AdmissionConfig{Timeout: schedule.DefaultAdmissionTimeout},
		Traces:    TracesConfig{Limit: trace.DefaultLimit},
		Artifacts: ArtifactsConfig{
			Store: objects.DefaultConfig(), MaxSize: config.Bytes(artifact.DefaultSizes().Archive), ExpireIn: expiry.Default,
			MaxExpire: expiry.Max,
		},
		Move:     MoveConfig{Timeout: 10 * time.Minute},
		Registry: RegistryConfig{Service: "container_registry", Issuer: "lockstep"},
	}
	// Requests for jobs are held: a drain ends them early, and each runner has one.
	c.API.MaxBody = 0
	c.API.MaxHTTPConnections, c.API.MaxHTTPRequests = 10_000, 10_000
	c.API.MaxHTTPConnectionsPerHost, c.API.MaxHTTPRequestsPerHost = 10_000, 10_000
	return c
}

const maxCellNumber = 8191

// Validate returns all errors of the configuration. The embedded configurations validate themselves.
func (c Config) Validate() []error {
	var errs []error
	if err := topology.ValidateCell(c.Cell.Name); err != nil {
		errs = append(errs, config.Invalid("cell.name", "%v", err))
	}
	if c.Cell.Number < 0 || c.Cell.Number > maxCellNumber {
		errs = append(errs, config.Invalid("cell.number", "%d is not between 0 and %d", c.Cell.Number, maxCellNumber))
	}
	if err := access.ValidateStreamLifetime(c.Access.StreamLifetime); err != nil {
		errs = append(errs, config.Invalid("access.stream_lifetime", "%v", err))
	}
	if c.Access.MaxStreams < 1 {
		errs = append(errs, config.Invalid("access.max_streams_per_user", "%d is less than 1", c.Access.MaxStreams))
	}
	if c.API.MaxBody != 0 {
		errs = append(errs, config.Invalid("api.max_body", "artifacts have a limit of their own: use 0"))
	}
	for key, address := range map[string]string{
		"cell.url": c.Cell.URL, "cell.redirect_url": c.Cell.RedirectURL, "cell.public_url": c.Cell.PublicURL,
		"state.url": c.State.URL,
	} {
		if address != "" && !isHTTP(address) {
			errs = append(errs, config.Invalid(key, "%q is not a URL such as https://runners.example", address))
		}
	}
	if !c.Signing.KeyFile.IsSet() {
		errs = append(errs, config.Invalid("signing.key_file", "is missing: run lockstep runners init"))
	}
	return errs
}

func isHTTP(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

const maxHold = 10 * time.Minute

// Validate checks the times.
func (c QueueConfig) Validate() []error {
	var errs []error
	for key, d := range map[string]time.Duration{
		"hold": c.Hold, "confirm_timeout": c.ConfirmTimeout, "silence_timeout": c.SilenceTimeout,
		"cancel_timeout": c.CancelTimeout, "stuck_timeout": c.StuckTimeout, "match_timeout": c.MatchTimeout,
	} {
		if d <= 0 {
			errs = append(errs, config.Invalid(key, "%s is not a positive duration", d))
		}
	}
	if c.Hold >= maxHold {
		errs = append(errs, config.Invalid("hold", "%s is not less than %s", c.Hold, maxHold))
	}
	return errs
}

// Validate checks the time.
func (c MoveConfig) Validate() []error {
	if c.Timeout <= 0 {
		return []error{config.Invalid("timeout", "%s is not a positive duration", c.Timeout)}
	}
	return nil
}

const maxAdmissionTimeout = 24 * time.Hour

// Validate checks the timeout.
func (c AdmissionConfig) Validate() []error {
	if c.Timeout < time.Second || c.Timeout > maxAdmissionTimeout {
		return []error{config.Invalid("timeout", "%s is not between 1s and %s", c.Timeout, maxAdmissionTimeout)}
	}
	return nil
}

// Validate checks the limit.
func (c TracesConfig) Validate() []error {
	if c.Limit < config.KiB {
		return []error{config.Invalid("limit", "%s is less than 1KiB", c.Limit)}
	}
	return nil
}

// Validate checks the size and the times.
func (c ArtifactsConfig) Validate() []error {
	var errs []error
	if c.MaxSize < config.KiB {
		errs = append(errs, config.Invalid("max_size", "%s is less than 1KiB", c.MaxSize))
	}
	if c.ExpireIn < 0 || c.MaxExpire < 0 {
		errs = append(errs, config.Invalid("expire_in", "is negative"))
	}
	return errs
}
