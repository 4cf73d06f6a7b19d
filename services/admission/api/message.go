package api

import (
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/controller"
)

var levels = map[admissionv1.ControllerLevel]chain.Level{
	admissionv1.ControllerLevel_CONTROLLER_LEVEL_PROJECT:  chain.LevelProject,
	admissionv1.ControllerLevel_CONTROLLER_LEVEL_GROUP:    chain.LevelGroup,
	admissionv1.ControllerLevel_CONTROLLER_LEVEL_INSTANCE: chain.LevelInstance,
}

// modes and failurePolicies have the unspecified value for what has a default.
var modes = map[admissionv1.ControllerMode]chain.Mode{
	admissionv1.ControllerMode_CONTROLLER_MODE_ENFORCED: chain.Enforced,
	admissionv1.ControllerMode_CONTROLLER_MODE_DRY_RUN:  chain.DryRun,
	admissionv1.ControllerMode_CONTROLLER_MODE_DISABLED: chain.Disabled,
}

var failurePolicies = map[admissionv1.FailurePolicy]chain.FailurePolicy{
	admissionv1.FailurePolicy_FAILURE_POLICY_DENY:   chain.Deny,
	admissionv1.FailurePolicy_FAILURE_POLICY_IGNORE: chain.Ignore,
}

// keyOf returns the key of a value; the zero value if there is none.
func keyOf[K comparable, V comparable](values map[K]V, value V) K {
	for k, v := range values {
		if v == value {
			return k
		}
	}
	return *new(K)
}

// setters copy one setting.
var setters = map[string]func(to *controller.Settings, from controller.Settings){
	"name":           func(to *controller.Settings, from controller.Settings) { to.Name = from.Name },
	"mode":           func(to *controller.Settings, from controller.Settings) { to.Mode = from.Mode },
	"mutating":       func(to *controller.Settings, from controller.Settings) { to.Mutating = from.Mutating },
	"failure_policy": func(to *controller.Settings, from controller.Settings) { to.FailurePolicy = from.FailurePolicy },
	"timeout":        func(to *controller.Settings, from controller.Settings) { to.Timeout = from.Timeout },
	"max_attempts":   func(to *controller.Settings, from controller.Settings) { to.MaxAttempts = from.MaxAttempts },
	"match":          func(to *controller.Settings, from controller.Settings) { to.Match = from.Match },
	"variables":      func(to *controller.Settings, from controller.Settings) { to.Variables = from.Variables },
	"webhook":        func(to *controller.Settings, from controller.Settings) { to.Webhook = from.Webhook },
	"policy":         func(to *controller.Settings, from controller.Settings) { to.Policy = from.Policy },
}

func settingNames() []string { return slices.Sorted(maps.Keys(setters)) }

// settingsOf returns the settings of a message. An unknown mode or policy is kept as a text that is not valid.
func settingsOf(m *admissionv1.ControllerSettings) controller.Settings {
	s := controller.Settings{
		Name: m.GetName(), Mutating: m.GetMutating(), Timeout: m.GetTimeout().AsDuration(),
		MaxAttempts: int(m.GetMaxAttempts()), Match: m.GetMatch(), Variables: m.GetVariables(), Policy: m.GetPolicy(),
		Mode: modes[m.GetMode()], FailurePolicy: failurePolicies[m.GetFailurePolicy()],
	}
	if s.Mode == "" && m.GetMode() != admissionv1.ControllerMode_CONTROLLER_MODE_UNSPECIFIED {
		s.Mode = chain.Mode(m.GetMode().String())
	}
	if s.FailurePolicy == "" && m.GetFailurePolicy() != admissionv1.FailurePolicy_FAILURE_POLICY_UNSPECIFIED {
		s.FailurePolicy = chain.FailurePolicy(m.GetFailurePolicy().String())
	}
	if hook := m.GetWebhook(); hook != nil {
		s.Webhook = &controller.Webhook{
			URL: hook.GetUrl(), CA: hook.GetCa(), RequestTimeout: hook.GetRequestTimeout().AsDuration(),
			Concurrency: int(hook.GetConcurrency()), Rate: hook.GetRate(),
		}
	}
	return s
}

func (s *controllerService) message(c controller.Controller) *admissionv1.Controller {
	settings := &admissionv1.ControllerSettings{
		Name: c.Name, Mode: keyOf(modes, c.Mode), Mutating: c.Mutating,
		FailurePolicy: keyOf(failurePolicies, c.FailurePolicy), Timeout: durationpb.New(c.Timeout),
		MaxAttempts: number(c.MaxAttempts), Match: c.Match, Variables: c.Variables, Policy: c.Policy,
	}
	if hook := c.Webhook; hook != nil {
		settings.Webhook = &admissionv1.Webhook{
			Url: hook.URL, Ca: hook.CA, RequestTimeout: durationpb.New(hook.RequestTimeout),
			Concurrency: number(hook.Concurrency), Rate: hook.Rate,
		}
	}
	var secretBefore *timestamppb.Timestamp
	if s.controllers.Now().Before(c.SecretBeforeUntil) {
		secretBefore = timestamp(c.SecretBeforeUntil)
	}
	return &admissionv1.Controller{
		Id: c.ID, Level: keyOf(levels, c.Level), OwnerId: c.Owner.ID, Position: number(c.Position),
		Revision: c.Revision, Settings: settings, CreatedBy: c.CreatedBy, CreatedAt: timestamp(c.CreatedAt),
		UpdatedAt: timestamp(c.UpdatedAt), PreviousSecretUntil: secretBefore,
	}
}

func (s *controllerService) messages(list []controller.Controller) []*admissionv1.Controller {
	out := make([]*admissionv1.Controller, len(list))
	for i, c := range list {
		out[i] = s.message(c)
	}
	return out
}

// number returns a number that the limits keep small.
func number(n int) int32 { return int32(min(n, math.MaxInt32)) }

// timestamp is nil for the zero time.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
