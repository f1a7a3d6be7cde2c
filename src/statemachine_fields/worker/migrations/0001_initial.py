from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='RunStatistics',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('machine', models.CharField(max_length=200, verbose_name='machine')),
                ('state', models.CharField(max_length=200, verbose_name='state')),
                ('period', models.DateTimeField(verbose_name='hour')),
                ('claimed', models.BigIntegerField(db_default=0, default=0, verbose_name='claimed')),
                ('moved', models.BigIntegerField(db_default=0, default=0, verbose_name='moved')),
                ('waited', models.BigIntegerField(db_default=0, default=0, verbose_name='not yet')),
                ('failed', models.BigIntegerField(db_default=0, default=0, verbose_name='failed')),
                ('parked', models.BigIntegerField(db_default=0, default=0, verbose_name='parked')),
                ('released', models.BigIntegerField(db_default=0, default=0, verbose_name='given back')),
                ('recovered', models.BigIntegerField(db_default=0, default=0, verbose_name='recovered')),
                ('dropped', models.BigIntegerField(db_default=0, default=0, verbose_name='dropped')),
                ('deleted', models.BigIntegerField(db_default=0, default=0, verbose_name='deleted')),
                ('seconds', models.FloatField(db_default=0, default=0, verbose_name='seconds in handlers')),
            ],
            options={
                'verbose_name': 'run statistics',
                'verbose_name_plural': 'run statistics',
                'ordering': ['-period', 'machine', 'state'],
                'default_permissions': ('view',),
                'indexes': [models.Index(fields=['period'], name='statemachine_worker_period')],
                'constraints': [models.UniqueConstraint(fields=('machine', 'state', 'period'), name='statemachine_worker_one_hour')],
            },
        ),
    ]
