package telemetry

import (
	"io"
	"net/url"

	"lockstep.internal/libs/config"
)

// Config is the part `telemetry` of every service's configuration.
type Config struct {
	LogLevel     string  `yaml:"log_level" oneof:"debug|info|warn|error" help:"minimum level of logged entries"`
	LogFormat    string  `yaml:"log_format" oneof:"json|text" help:"how log entries are written to standard error"`
	OTLPEndpoint string  `yaml:"otlp_endpoint" help:"collector that receives traces, such as http://collector:4317; https for TLS; empty = OTEL_EXPORTER_OTLP_ENDPOINT, and without that no traces"`
	OTLPProtocol string  `yaml:"otlp_protocol" oneof:"grpc|http/protobuf" help:"protocol of the collector; empty = OTEL_EXPORTER_OTLP_PROTOCOL, else grpc"`
	SampleRatio  float64 `yaml:"sample_ratio" help:"share of the traces started here that are exported, from 0 to 1; traces started elsewhere keep their sampled flag"`

	// Out receives the log. Defaults to standard error.
	Out io.Writer `yaml:"-"`
}

// DefaultConfig logs JSON from info on and exports no traces.
func DefaultConfig() Config {
	return Config{LogLevel: "info", LogFormat: "json", SampleRatio: 1}
}

// Validate checks the endpoint and the ratio.
func (c Config) Validate() []error {
	var errs []error
	if c.OTLPEndpoint != "" {
		u, err := url.Parse(c.OTLPEndpoint)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			errs = append(errs, config.Invalid("otlp_endpoint", "is not an http:// or https:// address: %q", c.OTLPEndpoint))
		}
	}
	if !(c.SampleRatio >= 0 && c.SampleRatio <= 1) { // also refuses NaN
		errs = append(errs, config.Invalid("sample_ratio", "%v is not between 0 and 1", c.SampleRatio))
	}
	return errs
}
