package wire

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// RunnerRequest is the body of requests about the runner itself: verify, reset its token, unregister it or one of its
// managers.
type RunnerRequest struct {
	// Token of the runner. In requests that may have it in a header, it may be empty.
	Token string `json:"token"`
	// SystemID names the runner manager: one process of a runner. Empty in old versions.
	SystemID string `json:"system_id,omitempty"`
}

// Validate implements [Request].
func (r *RunnerRequest) Validate() error {
	if err := checkVisible("token", r.Token, MaxToken); err != nil {
		return err
	}
	return checkVisible("system_id", r.SystemID, MaxSystemID)
}

// AccessLevel says which jobs a runner takes.
type AccessLevel string

// The access levels. Empty means NotProtected.
const (
	NotProtected AccessLevel = "not_protected"
	// RefProtected runners take jobs of protected branches only.
	RefProtected AccessLevel = "ref_protected"
)

// RunnerType says whose jobs a runner takes.
type RunnerType string

// The types.
const (
	InstanceType RunnerType = "instance_type"
	GroupType    RunnerType = "group_type"
	ProjectType  RunnerType = "project_type"
)

// Settings of a new runner.
type Settings struct {
	Description     string `json:"description,omitempty"`
	MaintenanceNote string `json:"maintenance_note,omitempty"`
	TagList         Tags   `json:"tag_list,omitempty"`
	// RunUntagged defaults to true.
	RunUntagged *bool       `json:"run_untagged,omitempty"`
	Locked      bool        `json:"locked,omitempty"`
	Paused      bool        `json:"paused,omitempty"`
	AccessLevel AccessLevel `json:"access_level,omitempty"`
	// MaximumTimeout of jobs in seconds; 0 means none.
	MaximumTimeout int64 `json:"maximum_timeout,omitempty"`
}

// RegisterRequest creates a runner with a registration token.
type RegisterRequest struct {
	Settings

	// Token is the registration token.
	Token string `json:"token"`
	Info  Info   `json:"info"`
}

// CreateRunnerRequest creates a runner as a user.
type CreateRunnerRequest struct {
	Settings

	Type RunnerType `json:"runner_type"`
	// GroupID of a runner of a group, ProjectID of a runner of a project.
	GroupID   *int64 `json:"group_id,omitempty"`
	ProjectID *int64 `json:"project_id,omitempty"`
}

// maxTimeout bounds timeouts in seconds.
const maxTimeout = int64(30 * 24 * time.Hour / time.Second)

// Validate implements [Request].
func (r *RegisterRequest) Validate() error {
	if err := checkToken(r.Token); err != nil {
		return err
	}
	if err := r.Info.validate(); err != nil {
		return err
	}
	return r.validate()
}

// Validate implements [Request].
func (r *CreateRunnerRequest) Validate() error {
	if !slices.Contains([]RunnerType{InstanceType, GroupType, ProjectType}, r.Type) {
		return invalid("runner_type", "must be instance_type, group_type or project_type")
	}
	for _, owner := range []struct {
		name string
		of   RunnerType
		id   *int64
	}{{"group_id", GroupType, r.GroupID}, {"project_id", ProjectType, r.ProjectID}} {
		switch {
		case owner.id == nil && r.Type == owner.of:
			return invalid(owner.name, "is missing for a runner of the type "+string(r.Type))
		case owner.id != nil && r.Type != owner.of:
			return invalid(owner.name, "is not possible for a runner of the type "+string(r.Type))
		case owner.id != nil && *owner.id <= 0:
			return invalid(owner.name, "is not an id")
		}
	}
	return r.validate()
}

func (r *Settings) validate() error {
	if err := checkTexts(
		field{name: "description", text: r.Description, limit: MaxDescription},
		field{name: "maintenance_note", text: r.MaintenanceNote, limit: MaxDescription},
	); err != nil {
		return err
	}
	if len(r.TagList) > MaxTags {
		return invalid("tag_list", "has more than "+decimal(MaxTags)+" tags")
	}
	for _, tag := range r.TagList {
		if err := checkTexts(field{name: "tag_list", text: tag}); err != nil {
			return err
		}
	}
	if !slices.Contains([]AccessLevel{"", NotProtected, RefProtected}, r.AccessLevel) {
		return invalid("access_level", "must be not_protected or ref_protected")
	}
	if r.MaximumTimeout < 0 || r.MaximumTimeout > maxTimeout {
		return invalid("maximum_timeout", "must be between 0 and "+decimal(maxTimeout)+" seconds")
	}
	return nil
}

// Tags are the tags of a runner, trimmed and without empty ones. In JSON they are a text with commas, as runners send
// it, or a list, as other clients do.
type Tags []string

// UnmarshalJSON implements [json.Unmarshaler].
func (t *Tags) UnmarshalJSON(raw []byte) error {
	var list []string
	if len(raw) > 0 && raw[0] == '"' {
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return err //nolint:wrapcheck // of json, which calls this
		}
		list = strings.Split(text, ",")
	} else if err := json.Unmarshal(raw, &list); err != nil {
		return err //nolint:wrapcheck // of json, which calls this
	}
	*t = nil
	for _, tag := range list {
		if tag = strings.TrimSpace(tag); tag != "" && !slices.Contains(*t, tag) {
			*t = append(*t, tag)
		}
	}
	return nil
}

// MarshalJSON implements [json.Marshaler].
func (t Tags) MarshalJSON() ([]byte, error) {
	return json.Marshal(strings.Join(t, ",")) //nolint:wrapcheck // a string cannot fail
}

// Runner answers a request to register or verify.
type Runner struct {
	// ID is not 0.
	ID    int64  `json:"id"`
	Token string `json:"token"`
	// TokenExpiresAt is null if the token does not expire.
	TokenExpiresAt *time.Time `json:"token_expires_at"`
}

// ResetToken answers a request to reset the token of a runner.
type ResetToken struct {
	Token string `json:"token"`
	// TokenExpiresAt is null if the token does not expire.
	TokenExpiresAt *time.Time `json:"token_expires_at"`
}
