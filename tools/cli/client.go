package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"
	"sigs.k8s.io/yaml"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
)

// Client is the client configuration file.
type Client struct {
	// Server is the URL of the state service's API.
	Server string `json:"server"`
	// TokenFile holds the personal access token.
	TokenFile string `json:"token_file"`
	// NATSURL and NATSSeedFile reach the streams, for `events` and `replay`.
	NATSURL      string `json:"nats_url"`
	NATSSeedFile string `json:"nats_seed_file"`
	NATSCAFile   string `json:"nats_ca_file"`
	// Cell is the cell's name. Defaults to local.
	Cell string `json:"cell"`
}

const (
	clientVariable = "LOCKSTEP_CLIENT"
	clientFileMode = 0o600
)

// DefaultClientFile is where the client configuration is looked for.
func DefaultClientFile() string {
	if path := os.Getenv(clientVariable); path != "" {
		return path
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "client.yaml"
	}
	return filepath.Join(dir, "lockstep", "client.yaml")
}

// Write stores the client configuration for its user alone.
func (c Client) Write(path string) error {
	raw, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("client configuration: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("client configuration: %w", err)
	}
	if err := os.WriteFile(path, raw, clientFileMode); err != nil {
		return fmt.Errorf("client configuration: %w", err)
	}
	return nil
}

// readClient reads the file; a missing one is an empty configuration.
func readClient(path string) (Client, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return Client{}, nil
	}
	if err != nil {
		return Client{}, fault.Wrap(err, errcode.InvalidArgument, "the client configuration %s cannot be read: %v", path, err)
	}
	var c Client
	if err := yaml.UnmarshalStrict(raw, &c); err != nil {
		return Client{}, fault.Wrap(err, errcode.InvalidArgument, "the client configuration %s is malformed: %v", path, err)
	}
	return c, nil
}

// api is the state service as the caller sees it.
type api struct {
	directory  statev1connect.DirectoryServiceClient
	tokens     statev1connect.TokenServiceClient
	agents     statev1connect.AgentServiceClient
	templates  statev1connect.TemplateServiceClient
	workspaces statev1connect.WorkspaceServiceClient
}

func (a *app) api() (*api, error) {
	if a.client.Server == "" {
		return nil, fault.New(errcode.InvalidArgument,
			"no server is configured: start one with `lockstep up`, or give --server, LOCKSTEP_SERVER or server in %s", a.clientFile)
	}
	value, err := a.token()
	if err != nil {
		return nil, err
	}
	options := []connect.ClientOption{connect.WithInterceptors(fault.NewInterceptor(a.logger), bearer(value))}
	url := strings.TrimSuffix(a.client.Server, "/")
	return &api{
		directory:  statev1connect.NewDirectoryServiceClient(http.DefaultClient, url, options...),
		tokens:     statev1connect.NewTokenServiceClient(http.DefaultClient, url, options...),
		agents:     statev1connect.NewAgentServiceClient(http.DefaultClient, url, options...),
		templates:  statev1connect.NewTemplateServiceClient(http.DefaultClient, url, options...),
		workspaces: statev1connect.NewWorkspaceServiceClient(http.DefaultClient, url, options...),
	}, nil
}

// token is LOCKSTEP_TOKEN, else the token file's.
func (a *app) token() (string, error) {
	if value := os.Getenv("LOCKSTEP_TOKEN"); value != "" {
		return value, nil
	}
	if a.client.TokenFile == "" {
		return "", fault.New(errcode.Unauthenticated, "no personal access token is configured: give --token-file, LOCKSTEP_TOKEN or token_file in %s", a.clientFile)
	}
	value, err := config.SecretFile(a.client.TokenFile).Read()
	if err != nil {
		return "", fault.Wrap(err, errcode.Unauthenticated, "the personal access token: %v", err)
	}
	return value, nil
}

// bearer sends the token with every call.
type bearer string

func (b bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		request.Header().Set("Authorization", "Bearer "+string(b))
		return next(ctx, request)
	}
}

func (b bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set("Authorization", "Bearer "+string(b))
		return conn
	}
}

// WrapStreamingHandler is for servers only, which this interceptor is not.
func (b bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
