package cli

import (
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	"lockstep.internal/services/admission/policy"
)

// controllerFlags are the flags for the settings of a controller.
type controllerFlags struct {
	message                 admissionv1.ControllerSettings
	webhook                 admissionv1.Webhook
	mode, failurePolicy     string
	timeout, requestTimeout time.Duration
	policyFile, caFile      string
}

// controllerFields has the field of ControllerSettings for each flag.
func controllerFields() map[string]string {
	return map[string]string{
		"name": "name", "mode": "mode", "mutating": "mutating", "failure-policy": "failure_policy", "timeout": "timeout",
		"max-attempts": "max_attempts", "match": "match", "variables": "variables", "policy": "policy", "url": "webhook",
		"ca-file": "webhook", "request-timeout": "webhook", "concurrency": "webhook", "rate": "webhook",
	}
}

func (s *controllerFlags) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&s.webhook.Url, "url", "", "URL of the web server that decides")
	f.StringVar(&s.policyFile, "policy", "", "file with the policy that decides, - for standard input")
	f.BoolVar(&s.message.Mutating, "mutating", false, "the controller may change tags and runners")
	enumValueFlag(c, &s.mode, "mode", "whether decisions count; default: enforced",
		enumWords(controllerModePrefix, admissionv1.ControllerMode_value))
	enumValueFlag(c, &s.failurePolicy, "failure-policy", "what a failed controller means for the job; default: deny",
		enumWords(failurePolicyPrefix, admissionv1.FailurePolicy_value))
	durationFlag(c, &s.timeout, "timeout", 0, "time to decide about a job; default: 10m")
	f.Int32Var(&s.message.MaxAttempts, "max-attempts", 0, "how often a job asks at most; default: 5")
	f.StringVar(&s.message.Match, "match", "", "condition in CEL: other jobs do not ask the controller")
	f.StringSliceVar(&s.message.Variables, "variables", nil, "predefined variables that it receives; default: all")
	f.StringVar(&s.caFile, "ca-file", "", "PEM file with the CAs of the web server; default: those of the system")
	durationFlag(c, &s.requestTimeout, "request-timeout", 0, "longest time of one request; default: 10s")
	f.Int32Var(&s.webhook.Concurrency, "concurrency", 0, "requests at the same time; default: 10")
	f.Float64Var(&s.webhook.Rate, "rate", 0, "requests per second; default: no limit")
	_ = c.MarkFlagFilename("policy", "yml", "yaml")
	_ = c.MarkFlagFilename("ca-file", "pem", "crt")
}

// read returns the settings of the flags.
func (s *controllerFlags) read(c *cobra.Command) (*admissionv1.ControllerSettings, error) {
	var err error
	if s.message.Mode, err = oneEnum[admissionv1.ControllerMode]("--mode", s.mode, controllerModePrefix,
		admissionv1.ControllerMode_value); err != nil {
		return nil, err
	}
	if s.message.FailurePolicy, err = oneEnum[admissionv1.FailurePolicy]("--failure-policy", s.failurePolicy,
		failurePolicyPrefix, admissionv1.FailurePolicy_value); err != nil {
		return nil, err
	}
	if s.timeout != 0 {
		s.message.Timeout = durationpb.New(s.timeout)
	}
	if s.policyFile != "" {
		content, err := readInput(s.policyFile, "policy", policy.MaxBytes, c.InOrStdin())
		if err != nil {
			return nil, err
		}
		s.message.Policy = string(content)
	}
	if s.caFile != "" {
		content, err := readInput(s.caFile, "CA certificates", maxCertificates, c.InOrStdin())
		if err != nil {
			return nil, err
		}
		s.webhook.Ca = string(content)
	}
	if s.requestTimeout != 0 {
		s.webhook.RequestTimeout = durationpb.New(s.requestTimeout)
	}
	if s.webhook.GetUrl() != "" {
		s.message.Webhook = &s.webhook
	}
	return &s.message, nil
}

// overWebhook returns a webhook with the settings of the given flags.
func (s *controllerFlags) overWebhook(c *cobra.Command, current *admissionv1.Webhook) *admissionv1.Webhook {
	out := &admissionv1.Webhook{
		Url: current.GetUrl(), Ca: current.GetCa(), RequestTimeout: current.GetRequestTimeout(),
		Concurrency: current.GetConcurrency(), Rate: current.GetRate(),
	}
	for flag, set := range map[string]func(){
		"url":             func() { out.Url = s.webhook.GetUrl() },
		"ca-file":         func() { out.Ca = s.webhook.GetCa() },
		"request-timeout": func() { out.RequestTimeout = s.webhook.GetRequestTimeout() },
		"concurrency":     func() { out.Concurrency = s.webhook.GetConcurrency() },
		"rate":            func() { out.Rate = s.webhook.GetRate() },
	} {
		if c.Flags().Changed(flag) {
			set()
		}
	}
	return out
}
