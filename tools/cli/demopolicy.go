package cli

import (
	"context"
	"fmt"
	"net/http"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
)

// demoZone is a tag of the demo's runner, and demoPolicy redirects jobs to it.
const (
	demoZone   = "zone_a"
	demoPolicy = `rules:
  - if: job.stage == "release"
    add_tags: [` + demoZone + `]
    reason: jobs of the stage release run in ` + demoZone + `
`
)

// createDemoPolicy creates the admission controller of the demo's project, if it does not exist.
func createDemoPolicy(ctx context.Context, api *client.API, s *stack.Stack, projectID int64) error {
	_, err := api.Admission(http.DefaultClient, s.AdmissionURL()).Controllers.CreateController(ctx,
		connect.NewRequest(&admissionv1.CreateControllerRequest{
			Level: admissionv1.ControllerLevel_CONTROLLER_LEVEL_PROJECT, OwnerId: projectID,
			Settings: &admissionv1.ControllerSettings{Name: "zones", Mutating: true, Policy: demoPolicy},
		}))
	if err != nil && !fault.Is(err, errcode.AlreadyExists) {
		return fmt.Errorf("create the admission policy of the demo: %w", err)
	}
	return nil
}
