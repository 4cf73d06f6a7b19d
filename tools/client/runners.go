package client

import (
	"net/http"
	"strings"

	"lockstep.internal/schemas/gen/lockstep/runners/v1/runnersv1connect"
)

// runnersAudience is the audience of access tokens for the runners service.
const runnersAudience = "runners"

// Runners is a client of the runners service. Errors of calls are faults.
type Runners struct {
	Pipelines  runnersv1connect.PipelineServiceClient
	Jobs       runnersv1connect.JobServiceClient
	Runners    runnersv1connect.RunnerServiceClient
	Operations runnersv1connect.OperationServiceClient
	Moves      runnersv1connect.MoveServiceClient

	// URL is the address of the service, which is also the one that runners use.
	URL string

	http   *http.Client
	access *accessTokens
}

// Runners returns a client of the runners service at the URL server, for the same user.
func (a *API) Runners(client *http.Client, server string) *Runners {
	options := a.ClientOption(runnersAudience)
	url := strings.TrimSuffix(server, "/")
	return &Runners{
		Pipelines:  runnersv1connect.NewPipelineServiceClient(client, url, options),
		Jobs:       runnersv1connect.NewJobServiceClient(client, url, options),
		Runners:    runnersv1connect.NewRunnerServiceClient(client, url, options),
		Operations: runnersv1connect.NewOperationServiceClient(client, url, options),
		Moves:      runnersv1connect.NewMoveServiceClient(client, url, options),
		URL:        url,
		http:       client,
		access:     a.access,
	}
}
