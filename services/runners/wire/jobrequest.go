package wire

// JobRequest asks for a job. Runners also send a session, for interactive terminals, which this service does not have.
type JobRequest struct {
	// Token of the runner. It may be in a header instead.
	Token    string `json:"token"`
	SystemID string `json:"system_id,omitempty"`
	Info     Info   `json:"info"`
	// LastUpdate is the header X-GitLab-Last-Update of the last answer; see [LastUpdate.Since].
	LastUpdate string `json:"last_update,omitempty"`
}

// Validate implements [Request]. A last_update that is not valid is no error: it counts as absent.
func (r *JobRequest) Validate() error {
	if err := checkVisible("token", r.Token, MaxToken); err != nil {
		return err
	}
	if err := checkVisible("system_id", r.SystemID, MaxSystemID); err != nil {
		return err
	}
	return r.Info.validate()
}
