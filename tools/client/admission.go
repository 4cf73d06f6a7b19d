package client

import (
	"net/http"
	"strings"

	"lockstep.internal/schemas/gen/lockstep/admission/v1/admissionv1connect"
)

// admissionAudience is the audience of access tokens for the admission service.
const admissionAudience = "admission"

// Admission is a client of the admission service. Errors of calls are faults.
type Admission struct {
	Controllers admissionv1connect.ControllerServiceClient
	Decisions   admissionv1connect.DecisionServiceClient
}

// Admission returns a client of the admission service at the URL server, for the same user.
func (a *API) Admission(client *http.Client, server string) *Admission {
	options := a.ClientOption(admissionAudience)
	url := strings.TrimSuffix(server, "/")
	return &Admission{
		Controllers: admissionv1connect.NewControllerServiceClient(client, url, options),
		Decisions:   admissionv1connect.NewDecisionServiceClient(client, url, options),
	}
}
