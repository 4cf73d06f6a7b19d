package api

import (
	"lockstep.internal/libs/access"
	"lockstep.internal/schemas/gen/lockstep/admission/v1/admissionv1connect"
)

// Scopes returns the scope that each method needs. Who changes controllers decides which jobs run: [access.ScopeAdmin].
func Scopes() access.Scopes {
	return access.Scopes{
		admissionv1connect.ControllerServiceCreateControllerProcedure:            access.ScopeAdmin,
		admissionv1connect.ControllerServiceDeleteControllerProcedure:            access.ScopeAdmin,
		admissionv1connect.ControllerServiceGetControllerProcedure:               access.ScopeRead,
		admissionv1connect.ControllerServiceListControllersProcedure:             access.ScopeRead,
		admissionv1connect.ControllerServiceListOrganizationControllersProcedure: access.ScopeRead,
		admissionv1connect.ControllerServiceReorderControllersProcedure:          access.ScopeAdmin,
		admissionv1connect.ControllerServiceRotateSecretProcedure:                access.ScopeAdmin,
		admissionv1connect.ControllerServiceUpdateControllerProcedure:            access.ScopeAdmin,

		admissionv1connect.DecisionServiceExplainJobProcedure:    access.ScopeRead,
		admissionv1connect.DecisionServiceListDecisionsProcedure: access.ScopeRead,
	}
}
