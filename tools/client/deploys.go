package client

import (
	"strings"

	"connectrpc.com/connect"

	"lockstep.internal/schemas/gen/lockstep/deploys/v1/deploysv1connect"
)

// deploysAudience is the audience of access tokens for the deploys service.
const deploysAudience = "deploys"

// Deploys is a client of the deploys service. Errors of calls are faults.
type Deploys struct {
	Rollouts   deploysv1connect.RolloutServiceClient
	Sinks      deploysv1connect.SinkServiceClient
	Clusters   deploysv1connect.ClusterServiceClient
	Operations deploysv1connect.OperationServiceClient
}

// Deploys returns a client of the deploys service at the URL server, for the same user.
func (a *API) Deploys(http connect.HTTPClient, server string) *Deploys {
	options := a.ClientOption(deploysAudience)
	url := strings.TrimSuffix(server, "/")
	return &Deploys{
		Rollouts:   deploysv1connect.NewRolloutServiceClient(http, url, options),
		Sinks:      deploysv1connect.NewSinkServiceClient(http, url, options),
		Clusters:   deploysv1connect.NewClusterServiceClient(http, url, options),
		Operations: deploysv1connect.NewOperationServiceClient(http, url, options),
	}
}
