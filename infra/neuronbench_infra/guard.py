"""What keeps boxes from running for ever: a budget with mail, and a function that stops them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from aws_cdk import Aws, Duration, RemovalPolicy, Stack
from aws_cdk import aws_budgets as budgets
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as cloudwatch_actions
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from neuronbench_infra.names import DEPLOYMENT_TAG
from neuronbench_infra.rules import explain
from neuronbench_infra.settings import Budget, Settings

CODE: Final = Path(__file__).parent / "guard_function"
EVERY: Final = Duration.minutes(10)
STEPS_PERCENT: Final = (50, 80)
"""Parts of the budget at which somebody is told before boxes are stopped."""


class Guard(Construct):
    """The function, its clock, the budget and the alarms."""

    def __init__(self, scope: Construct, name: str, *, settings: Settings, key: kms.IKey) -> None:
        super().__init__(scope, name)
        self.deployment = settings.deployment
        budget = settings.budget
        self.budget_name = f"{settings.deployment}-{Aws.REGION}" if budget else ""
        self.function = self._function(settings)
        self.alarms = _topic(self, "Alarms", key, "cloudwatch")
        for mail in budget.mails if budget else ():
            self.alarms.add_subscription(subscriptions.EmailSubscription(mail))
        events.Rule(
            self,
            "Clock",
            description="neuronbench: whose time is over, and is there money?",
            schedule=events.Schedule.rate(EVERY),
            targets=[targets.LambdaFunction(self.function)],
        )
        if any(box.purchase == "asg" for box in settings.boxes):
            events.Rule(
                self,
                "Gone",
                description="neuronbench: a box that shut itself down is not started again by its group",
                event_pattern=events.EventPattern(
                    source=["aws.ec2"],
                    detail_type=["EC2 Instance State-change Notification"],
                    detail={"state": ["shutting-down", "stopping"]},
                ),
                targets=[targets.LambdaFunction(self.function)],
            )
        if budget:
            spent = _topic(self, "Spent", key, "budgets")
            spent.add_subscription(subscriptions.LambdaSubscription(self.function))
            self._budget(budget, spent)
        self._alarm(
            "Fails", self.function.metric_errors(period=EVERY), missing=cloudwatch.TreatMissingData.NOT_BREACHING
        )
        self._alarm("Silent", self.function.metric_invocations(period=Duration.hours(1)), at_least=False)

    def _function(self, settings: Settings) -> lambda_.Function:
        log_group = logs.LogGroup(
            self, "Log", retention=logs.RetentionDays.THREE_MONTHS, removal_policy=RemovalPolicy.DESTROY
        )
        role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            description="neuronbench guard: looks at all boxes, stops those of one deployment",
        )
        log_group.grant_write(role)
        self._allow(role)
        explain(
            role,
            "IAM5",
            "EC2 and Auto Scaling list without limits by resource; what stops is limited by the deployment's tag.",
            applies_to=[
                r"\*",
                r"arn:.+:ec2:.+:.+:instance\/\*",
                r"arn:.+:autoscaling:.+:.+:autoScalingGroup:\*:autoScalingGroupName\/\*",
            ],
            children=True,
        )
        return lambda_.Function(
            self,
            "Function",
            description="neuronbench guard: stops boxes whose time or money is over",
            runtime=lambda_.Runtime.PYTHON_3_14,
            architecture=lambda_.Architecture.ARM_64,
            handler="guard.handler",
            code=lambda_.Code.from_asset(str(CODE), exclude=["__pycache__"]),
            role=role,
            log_group=log_group,
            timeout=Duration.minutes(2),
            memory_size=256,
            environment={
                "NEURONBENCH_DEPLOYMENT": settings.deployment,
                "NEURONBENCH_MAX_HOURS": str(settings.max_hours),
                "NEURONBENCH_BUDGET": self.budget_name,
                "NEURONBENCH_ACCOUNT": Aws.ACCOUNT_ID,
            },
        )

    def _allow(self, role: iam.Role) -> None:
        stack = Stack.of(self)
        tagged = {"StringEquals": {f"aws:ResourceTag/{DEPLOYMENT_TAG}": self.deployment}}
        groups = "autoScalingGroup:*:autoScalingGroupName/*"
        role.add_to_policy(
            iam.PolicyStatement(
                sid="Look", actions=["ec2:DescribeInstances", "autoscaling:DescribeAutoScalingGroups"], resources=["*"]
            )
        )
        role.add_to_policy(
            iam.PolicyStatement(
                sid="StopBoxes",
                actions=["ec2:StopInstances", "ec2:TerminateInstances"],
                resources=[stack.format_arn(service="ec2", resource="instance", resource_name="*")],
                conditions=tagged,
            )
        )
        role.add_to_policy(
            iam.PolicyStatement(
                sid="EmptyGroups",
                actions=[
                    "autoscaling:TerminateInstanceInAutoScalingGroup",
                    "autoscaling:UpdateAutoScalingGroup",
                ],
                resources=[f"arn:{Aws.PARTITION}:autoscaling:{Aws.REGION}:{Aws.ACCOUNT_ID}:{groups}"],
                conditions=tagged,
            )
        )
        if self.budget_name:
            role.add_to_policy(
                iam.PolicyStatement(
                    sid="LookAtBudget",
                    actions=["budgets:ViewBudget"],
                    resources=[f"arn:{Aws.PARTITION}:budgets::{Aws.ACCOUNT_ID}:budget/{self.budget_name}"],
                )
            )

    def _budget(self, budget: Budget, spent: sns.Topic) -> None:
        Subscriber = budgets.CfnBudget.SubscriberProperty
        mails = [Subscriber(subscription_type="EMAIL", address=mail) for mail in budget.mails]

        def at(
            percent: float, kind: str, *more: budgets.CfnBudget.SubscriberProperty
        ) -> budgets.CfnBudget.NotificationWithSubscribersProperty:
            return budgets.CfnBudget.NotificationWithSubscribersProperty(
                notification=budgets.CfnBudget.NotificationProperty(
                    comparison_operator="GREATER_THAN",
                    notification_type=kind,
                    threshold=percent,
                    threshold_type="PERCENTAGE",
                ),
                subscribers=[*mails, *more],
            )

        cost_filters = {"TagKeyValue": [f"user:{DEPLOYMENT_TAG}${self.deployment}"]} if budget.by_tag else None
        made = budgets.CfnBudget(
            self,
            "Budget",
            budget=budgets.CfnBudget.BudgetDataProperty(
                budget_name=self.budget_name,
                budget_type="COST",
                time_unit="MONTHLY",
                budget_limit=budgets.CfnBudget.SpendProperty(amount=budget.usd, unit="USD"),
                cost_filters=cost_filters,
            ),
            notifications_with_subscribers=[
                *(at(percent, "ACTUAL") for percent in STEPS_PERCENT),
                at(100, "FORECASTED"),
                at(100, "ACTUAL", Subscriber(subscription_type="SNS", address=spent.topic_arn)),
            ],
        )
        made.node.add_dependency(spent)  # with its policy: Budgets takes no topic that it may not send to

    def _alarm(
        self,
        name: str,
        metric: cloudwatch.Metric,
        *,
        at_least: bool = True,
        missing: cloudwatch.TreatMissingData = cloudwatch.TreatMissingData.BREACHING,
    ) -> None:
        alarm = cloudwatch.Alarm(
            self,
            name,
            alarm_description=f"neuronbench {self.deployment}: the guard {name.lower()}; boxes may run for ever",
            metric=metric.with_(statistic="Sum"),
            threshold=1,
            evaluation_periods=1,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD
            if at_least
            else cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            treat_missing_data=missing,
        )
        alarm.add_alarm_action(cloudwatch_actions.SnsAction(self.alarms))


def _topic(scope: Construct, name: str, key: kms.IKey, service: str) -> sns.Topic:
    """An encrypted topic to which one service may send for this account."""
    topic = sns.Topic(scope, name, master_key=key, enforce_ssl=True)
    topic.add_to_resource_policy(
        iam.PolicyStatement(
            sid=f"From{service.capitalize()}",
            principals=[iam.ServicePrincipal(f"{service}.amazonaws.com")],
            actions=["sns:Publish"],
            resources=[topic.topic_arn],
            conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
        )
    )
    return topic
