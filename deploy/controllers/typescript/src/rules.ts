/** The content of the file RULES. An absent field decides nothing. */
export interface Rules {
  /** The ids of the only projects whose jobs may run. */
  projects?: number[];
  /** Tags by the id of a user. The jobs of a user run in the zone of the user. */
  zones?: Record<string, string>;
  /** The ids of users by the id of a runner. A runner takes only jobs of its users. */
  runners?: Record<string, number[]>;
}

/** What Lockstep sends. See schemas/admission/request.v1.schema.json. */
export interface Job {
  id: number;
  variables: Record<string, string | number>;
  tags: string[];
}

/** What Lockstep expects. See schemas/admission/answer.v1.schema.json. */
export interface Answer {
  id: number;
  admission: "accepted" | "rejected";
  tags?: { add: string[]; remove: string[] };
  runners?: { accepted_ids: string[]; rejected_ids: string[] };
  reason?: string;
}

/** Decides about a job. It is idempotent: Lockstep may send a job more than once. */
export function decide(rules: Rules, job: Job): Answer {
  const project = Number(job.variables["CI_PROJECT_ID"] ?? 0);
  const user = Number(job.variables["GITLAB_USER_ID"] ?? 0);
  const rejected = (reason: string): Answer => ({ id: job.id, admission: "rejected", reason });
  if (rules.projects && !rules.projects.includes(project)) {
    return rejected(`project ${project} is not on the list`);
  }
  const answer: Answer = { id: job.id, admission: "accepted" };
  const reasons: string[] = [];
  const zone = rules.zones?.[String(user)];
  if (rules.zones && zone) {
    const zones = Object.values(rules.zones);
    answer.tags = { add: [zone], remove: job.tags.filter((tag) => tag !== zone && zones.includes(tag)) };
    reasons.push(`user ${user} belongs to ${zone}`);
  }
  if (rules.runners) {
    const accepted: string[] = [];
    const others: string[] = [];
    for (const [id, users] of Object.entries(rules.runners)) {
      (users.includes(user) ? accepted : others).push(id);
    }
    // An answer without accepted runners would mean all runners.
    if (accepted.length === 0) {
      return rejected(`user ${user} may use no runner`);
    }
    answer.runners = { accepted_ids: accepted, rejected_ids: others };
    reasons.push(`user ${user} may use runners ${accepted.join(", ")}`);
  }
  if (reasons.length > 0) {
    answer.reason = reasons.join("; ");
  }
  return answer;
}
