package router

import (
	"crypto/tls"
	"fmt"
	"time"

	"lockstep.internal/libs/certpool"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
)

// Config of the router.
type Config struct {
	service.Config `yaml:",inline"`

	Telemetry telemetry.Config `yaml:"telemetry"`
	API       service.Listener `yaml:"api" help:"the address of GitLab runners, jobs and users, for all cells; bodies are not limited, since cells limit them"`
	Cell      CellConfig       `yaml:"cell"`
	Cells     CellsConfig      `yaml:"cells"`
	NATS      natsconn.Config  `yaml:"nats"`
}

// CellConfig names the cell of NATS.
type CellConfig struct {
	Name string `yaml:"name" help:"name of the cell whose NATS has the cell map, a DNS label"`
}

// CellsConfig is about the requests to cells.
type CellsConfig struct {
	CAFile          string        `yaml:"ca_file" help:"PEM file with the CAs of the cells' certificates; empty = the system's"`
	MaxRequests     int           `yaml:"max_requests" help:"maximum requests in progress at one cell, so that a cell that hangs leaves room for others; a request above it gets unavailable. Each runner that waits for a job has one"`
	BodyTimeout     time.Duration `yaml:"body_timeout" help:"time that a client has to send each part of a body"`
	ResponseTimeout time.Duration `yaml:"response_timeout" help:"time until a response begins; longer than cells hold requests for jobs"`
	Breaker         BreakerConfig `yaml:"breaker"`
}

// BreakerConfig is about cells that are down.
type BreakerConfig struct {
	Failures int           `yaml:"failures" help:"number of requests in a row whose connection to a cell failed, after which its requests get unavailable at once"`
	Open     time.Duration `yaml:"open" help:"time after which one request tries whether the cell is back"`
}

// DefaultConfig returns the configuration for one machine. The NATS key has no default.
func DefaultConfig() Config {
	c := Config{
		Config:    service.DefaultConfig("127.0.0.1:8097"),
		Telemetry: telemetry.DefaultConfig(),
		API:       service.DefaultListener("127.0.0.1:8096"),
		Cell:      CellConfig{Name: "local"},
		Cells: CellsConfig{
			MaxRequests: 5000, BodyTimeout: time.Minute, ResponseTimeout: 11 * time.Minute,
			Breaker: BreakerConfig{Failures: 10, Open: 5 * time.Second},
		},
		NATS: natsconn.DefaultConfig(),
	}
	// Cells hold requests for jobs for 50 s: a drain lets them end.
	c.DrainTimeout = time.Minute
	c.API.MaxBody = 0
	c.API.MaxHTTPConnections, c.API.MaxHTTPRequests = 10_000, 10_000
	c.API.MaxHTTPConnectionsPerHost, c.API.MaxHTTPRequestsPerHost = 1000, 1000
	return c
}

// Validate returns all errors of the configuration. The embedded configurations validate themselves.
func (c Config) Validate() []error {
	var errs []error
	if err := topology.ValidateCell(c.Cell.Name); err != nil {
		errs = append(errs, config.Invalid("cell.name", "%v", err))
	}
	if c.API.MaxBody != 0 {
		errs = append(errs, config.Invalid("api.max_body", "the router does not limit bodies: use 0"))
	}
	if c.Cells.MaxRequests >= c.API.MaxHTTPRequests {
		errs = append(errs, config.Invalid("cells.max_requests",
			"%d is not less than api.max_http_requests, %d: one cell could take all",
			c.Cells.MaxRequests, c.API.MaxHTTPRequests))
	}
	return errs
}

// Validate checks the limits and the file.
func (c CellsConfig) Validate() []error {
	var errs []error
	for key, number := range map[string]int{"max_requests": c.MaxRequests, "breaker.failures": c.Breaker.Failures} {
		if number < 1 {
			errs = append(errs, config.Invalid(key, "%d is less than 1", number))
		}
	}
	for key, duration := range map[string]time.Duration{
		"body_timeout": c.BodyTimeout, "response_timeout": c.ResponseTimeout, "breaker.open": c.Breaker.Open,
	} {
		if duration <= 0 {
			errs = append(errs, config.Invalid(key, "%s is not a positive duration", duration))
		}
	}
	if _, err := c.tls(); err != nil {
		errs = append(errs, config.Invalid("ca_file", "%v", err))
	}
	return errs
}

// tls returns the configuration of connections to cells with https.
func (c CellsConfig) tls() (*tls.Config, error) {
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile == "" {
		return secure, nil
	}
	var err error
	if secure.RootCAs, err = certpool.Load(c.CAFile); err != nil {
		return nil, fmt.Errorf("load the CAs of cells: %w", err)
	}
	return secure, nil
}
