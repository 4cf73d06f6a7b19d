package endpoint

import (
	"lockstep.internal/libs/directory"
	"lockstep.internal/services/admission/decide"
)

// job is what a controller reads about the job itself.
type job struct {
	ID         int64    `json:"id"`
	PipelineID int64    `json:"pipeline_id"`
	ProjectID  int64    `json:"project_id"`
	UserID     int64    `json:"user_id"`
	Name       string   `json:"name"`
	Stage      string   `json:"stage"`
	Protected  bool     `json:"protected"`
	Attempt    int64    `json:"attempt"`
	Tags       []string `json:"tags"`
}

func (h *handler) job(j decide.Job) any {
	return job{
		ID: j.JobID, PipelineID: j.PipelineID, ProjectID: j.ProjectID, UserID: j.UserID, Name: j.Name, Stage: j.Stage,
		Protected: j.Protected, Attempt: j.Attempt, Tags: j.State.Definition.Tags,
	}
}

// project is the project of the job. GroupIDs are those that contain it, the innermost first.
type project struct {
	ID             int64   `json:"id"`
	Path           string  `json:"path"`
	OrganizationID int64   `json:"organization_id"`
	GroupIDs       []int64 `json:"group_ids"`
}

func (h *handler) groups(j decide.Job) []int64 {
	place, _ := h.Directory.Place(directory.Scope{Kind: directory.Project, ID: j.ProjectID})
	return place.Groups
}

func (h *handler) project(j decide.Job) any {
	return project{
		ID: j.ProjectID, Path: j.Variables["CI_PROJECT_PATH"], OrganizationID: j.OrganizationID,
		GroupIDs: h.groups(j),
	}
}

// user is the user who created the pipeline.
type user struct {
	ID            int64  `json:"id"`
	Login         string `json:"login"`
	Administrator bool   `json:"administrator"`
	Blocked       bool   `json:"blocked"`
}

func (h *handler) user(j decide.Job) any {
	known, found := h.Directory.User(j.UserID)
	return user{ID: j.UserID, Login: j.UserLogin, Administrator: known.Admin, Blocked: !found || known.Blocked}
}

// membership is a direct role of the user.
type membership struct {
	Scope   string `json:"scope"`
	ScopeID int64  `json:"scope_id"`
	Role    string `json:"role"`
}

func (h *handler) memberships(j decide.Job) any {
	out := []membership{}
	for _, m := range h.Directory.Memberships(j.UserID) {
		out = append(out, membership{Scope: string(m.Scope.Kind), ScopeID: m.Scope.ID, Role: string(m.Role)})
	}
	return out
}

// runner is a runner whose scope includes the job. IDs are texts, as in answers.
type runner struct {
	ID          int64    `json:"id,string"`
	Description string   `json:"description"`
	Type        string   `json:"type"`
	Tags        []string `json:"tags"`
	RunUntagged bool     `json:"run_untagged"`
	Protected   bool     `json:"protected"`
	Paused      bool     `json:"paused"`
	Locked      bool     `json:"locked"`
	// UserIDs and GroupIDs are those that the runner serves; empty for all.
	UserIDs  []int `json:"user_ids"`
	GroupIDs []int `json:"group_ids"`
}

func (h *handler) runners(j decide.Job) any {
	out := []runner{}
	for _, r := range h.Runners.Of(j.ProjectID, h.groups(j), j.Protected) {
		out = append(out, runner{
			ID: int64(r.RunnerID), Description: r.Description, Type: string(r.Type), Tags: r.Tags, RunUntagged: r.RunUntagged,
			Protected: r.Protected, Paused: r.Paused, Locked: r.Locked, UserIDs: r.UserIds, GroupIDs: r.GroupIds,
		})
	}
	return out
}
